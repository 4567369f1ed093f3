"""Imports the modules that read and run a model's files.

Both the process that inspects the files and the process that asks it do this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from split_infer_ros.models.onnx_models import is_onnx_file
from split_infer_ros.runtime.optional_packages import import_package
from split_infer_ros.runtime.usage_reports import stop_usage_reports

WITH_TORCH = "split_infer_ros.split.torch_loading"
READERS = ("onnx.checker", "onnx.inliner")
ENGINES = ("onnxruntime", "openvino")


def preload(modules: Sequence[str]) -> None:
    """Imports modules. Skips those that cannot be imported: the code that needs them reports the error later."""
    stop_usage_reports()
    for module in modules:
        with contextlib.suppress(Exception):
            import_package(module, "an inspection", "")


def modules_for(spec: dict[str, Any]) -> Sequence[str]:
    """Returns the names of the modules that read and run a model's files.

    They are imported before an inspection, so that the time limit does not include imports.

    Args:
        spec: the fields of the model's spec, as ``Inspector.ask`` sends them.
    """
    if is_onnx_file(spec["name"]) and not spec["on_torch"]:
        return (*READERS, *({spec["engine"]} & set(ENGINES)))
    return (WITH_TORCH,)
