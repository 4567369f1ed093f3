"""Imports a Python package that not every installation has. The error says who needs it, and what the user can do."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime import openvino_import


def import_package(package: str, need: str, advice: str) -> ModuleType:
    """Imports a package.

    Args:
        package: the package's name.
        need: the beginning of the error's sentence. It says what needs the package.
        advice: the end of the error's sentence. It says what the user can do.

    Raises:
        ConfigurationError: the package is not installed, or cannot be loaded.
    """
    try:
        is_openvino = package == openvino_import.PACKAGE
        return openvino_import.import_openvino() if is_openvino else importlib.import_module(package)
    except (ImportError, OSError) as error:  # OSError: a shared library is missing
        reason = "is not installed" if importlib.util.find_spec(package) is None else f"cannot be loaded ({error})"
        raise ConfigurationError(f"{need}, which {reason}: {advice}.") from error
