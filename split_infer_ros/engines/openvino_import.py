"""Imports OpenVINO without its converter of other frameworks' models, which takes twice as long as all the rest."""

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
        ImportError: it is not installed, or a library that it needs.
    """
    with _importing:
        if PACKAGE in sys.modules or CONVERTER in sys.modules:
            return importlib.import_module(PACKAGE)
        sys.modules[CONVERTER] = None  # type: ignore[assignment]  # its import raises ImportError, which is expected
        try:
            openvino: Any = importlib.import_module(PACKAGE)
        finally:
            del sys.modules[CONVERTER]
        if not hasattr(openvino, "convert_model"):
            openvino.convert_model = _convert_model
        return openvino  # type: ignore[no-any-return]


def _convert_model(*arguments: Any, **options: Any) -> Any:
    """Does what the converter's function of this name does."""
    return importlib.import_module(CONVERTER).convert_model(*arguments, **options)
