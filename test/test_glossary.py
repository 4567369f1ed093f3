"""The glossary names classes, commands, packages and documents that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import split_infer_ros

ROOT = Path(__file__).parents[1]
PACKAGE = Path(split_infer_ros.__file__).parent
GLOSSARY = ROOT / "docs" / "concepts" / "glossary.md"


def test_names_in_the_glossary_exist() -> None:
    classes = {
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    messages = {path.stem for path in (ROOT / "msg").glob("*.msg")}
    named = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)*)`", GLOSSARY.read_text()))
    assert len(named) > 40
    assert named <= classes | messages
    packages = set(re.findall(r"package `(\w+)`", GLOSSARY.read_text()))
    assert packages <= {path.name for path in PACKAGE.iterdir()}


def test_each_word_is_defined_once() -> None:
    rows = [line.split("|")[1].strip() for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]
    words = [row for row in rows if row not in ("word", "number") and not row.isdigit()]
    assert len(words) == len(set(words)) > 40


def test_documents_link_to_the_glossary() -> None:
    assert "(docs/concepts/glossary.md)" in (ROOT / "README.md").read_text()
    assert "(glossary.md)" in (ROOT / "docs" / "concepts" / "architecture.md").read_text()
