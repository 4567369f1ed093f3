"""The documentation as a site, and what its pages promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from documentation import ROOT, pages

MAX_README_LINES = 150
CHILD_S = 120  # a bound on the process that a test starts; the test's own bound lies above it


@pytest.mark.timeout(2 * CHILD_S)
def test_site_is_built_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("myst_parser", reason="Sphinx and MyST are not installed (the extra docs)")
    pytest.importorskip("furo", reason="the site's theme is not installed (the extra docs)")
    command = [
        "-m",
        "sphinx",
        "--fail-on-warning",
        "--keep-going",
        "-q",
        "-b",
        "html",
        str(ROOT / "docs"),
        str(tmp_path),
    ]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, timeout=CHILD_S)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").is_file()


def test_links_lead_to_files() -> None:
    """Sphinx checks links within the site; this also covers README, CONTRIBUTING and files outside of it."""
    for page in pages():
        if page.parent.name == "notes":
            continue  # they become parts of a page in the folder above
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if not target.startswith(("http:", "https:", "mailto:")):
                assert (page.parent / target).exists(), f"{page}: {target}"


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


def test_no_placeholder_is_left() -> None:
    texts = [*pages(), ROOT / "package.xml", ROOT / "setup.py"]
    for path in texts:
        assert not re.search(r"\.example\b|<this repository>|TODO|FIXME", path.read_text()), path
