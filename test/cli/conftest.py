from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from split_infer_ros import __main__


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the package's command with these arguments, in this process; returns its exit code."""

    def command(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["split_infer_ros", *arguments])
        return __main__.main()

    return command
