"""package.xml, CHANGELOG.rst, the source and the installed package say one version."""

import importlib.metadata
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import split_infer_ros

ROOT = Path(__file__).parents[1]
CHILD_S = 200  # a bound on the process that a test starts; the test's own bound lies above it


@pytest.fixture(scope="module")
def version() -> str:
    text = ElementTree.parse(ROOT / "package.xml").findtext("version")
    assert text is not None
    assert re.fullmatch(r"\d+\.\d+\.\d+", text)
    return text


def test_package_says_it(version: str) -> None:
    assert split_infer_ros.__version__ == version


def test_changelog_begins_with_it(version: str) -> None:
    headings = re.findall(r"^(\d+\.\d+\.\d+) \(.+\)\n-+$", (ROOT / "CHANGELOG.rst").read_text(), re.MULTILINE)
    assert headings[0] == version


@pytest.mark.timeout(2 * CHILD_S)
def test_setup_py_says_it(version: str) -> None:
    pytest.importorskip("setuptools")
    command = [sys.executable, "setup.py", "--version"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=CHILD_S).stdout
    assert output.split()[-1] == version


def test_installed_distribution_says_it(version: str) -> None:
    try:
        installed = importlib.metadata.version("split_infer_ros")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("split_infer_ros is not installed by pip here")
    assert installed == version
