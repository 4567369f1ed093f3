"""Says how a benchmark runs a module in a process of its own."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1]


def to_run(module: str) -> list[str]:
    """Returns the arguments with which a Python interpreter calls a module's ``main``.

    The process searches the folder ``benchmarks/`` for modules, and not the working folder.

    Args:
        module: the module's full name, which begins with ``benchmarks.``.
    """
    return [str(FOLDER), module.removeprefix("benchmarks.")]
