"""Runs the command of a benchmark in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def reported(main: Callable[[], int], folder: Path, *arguments: str) -> dict[str, Any]:
    """Runs a benchmark's ``main`` with arguments; returns the JSON that it wrote to a file in ``folder``."""
    path = folder / "reported.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bench", *arguments, "--json", str(path)])
        assert main() == 0
    found: dict[str, Any] = json.loads(path.read_text())
    assert found["arguments"] == list(arguments)
    return found
