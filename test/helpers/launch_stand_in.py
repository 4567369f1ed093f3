"""A pytest plugin that stands in for the plugins of ROS's launch packages. It affects tests as those plugins do.

It sets the root logger's level and the class of loggers, and imports test files by their bare names.
"""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path

import pytest


class SilentLogger(logging.Logger):
    """A logger whose records do not reach the root logger, at which pytest listens."""

    def __init__(self, name: str, level: int = logging.NOTSET) -> None:
        super().__init__(name, level)
        self.propagate = False


logging.root.setLevel(logging.INFO)
logging.setLoggerClass(SilentLogger)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """Imports the file by its bare name before pytest does.

    Raises:
        ImportError: another file has this name.
    """
    sys.path.insert(0, str(module_path.parent))
    found = Path(str(importlib.import_module(module_path.stem).__file__))
    if found != module_path:
        raise ImportError(f"{module_path} has the name of {found}")
    return pytest.Module.from_parent(parent, path=module_path)
