"""Imports OpenVINO without its converter for models of other frameworks.

The import of the converter alone takes twice as long as the rest.
"""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType
from typing import Any

PACKAGE = "openvino"
CONVERTER = f"{PACKAGE}.tools.ovc"  # openvino imports it if it is installed, for its function ``convert_model``

_importing = threading.Lock()


def import_openvino() -> ModuleType:
    """Returns the package ``openvino``. Its function ``convert_model`` imports the converter at its first call.

    Raises:
        ImportError: OpenVINO, or a library that it needs, is not installed.
    """
    with _importing:
        if PACKAGE in sys.modules or CONVERTER in sys.modules:
            return importlib.import_module(PACKAGE)
        sys.modules[CONVERTER] = None  # type: ignore[assignment]  # openvino expects an ImportError
        try:
            openvino: Any = importlib.import_module(PACKAGE)
        finally:
            del sys.modules[CONVERTER]
        if not hasattr(openvino, "convert_model"):
            openvino.convert_model = _convert_model
        return openvino  # type: ignore[no-any-return]


def _convert_model(*arguments: Any, **options: Any) -> Any:
    """Calls the converter's function ``convert_model``."""
    return importlib.import_module(CONVERTER).convert_model(*arguments, **options)
