"""Docstrings can be read by tools: the headings of their sections are not indented."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INDENTED = re.compile(r"^ +(?:Args|Attributes|Raises|Returns|Yields):$", re.MULTILINE)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.parametrize("folder", ["split_infer_ros", "benchmarks", "scripts", "test"])
def test_headings_of_sections_are_not_indented(folder: str) -> None:
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, DOCUMENTED) and INDENTED.search(ast.get_docstring(node) or ""):
                found.append(f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}")
    assert not found, "indented headings read as arguments"
