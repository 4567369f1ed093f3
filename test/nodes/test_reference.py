"""The reference pages say what the code says."""

from __future__ import annotations

import pytest
from reference import REFERENCE, pages

PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_page_agrees_with_the_code(name: str) -> None:
    assert (REFERENCE / name).read_text() == PAGES[name], "run scripts/run python scripts/reference.py"


def test_every_parameter_is_described() -> None:
    for line in PAGES["parameters.md"].splitlines():
        if line.startswith("| `"):
            assert line.rstrip(" |").endswith((".", "...")), line
