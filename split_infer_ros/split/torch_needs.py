"""Imports torch only if it is needed: to count GPUs, or for a model that cannot do without it."""

from __future__ import annotations

import sys
from pathlib import Path

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.gpu_files import NVIDIA, OTHERS
from split_infer_ros.runtime.optional_packages import import_package

DEVICES = (*NVIDIA, *OTHERS)
ADVICE = 'pip install "torch>=2.6,!=2.13.0" torchvision, or take'
AN_ONNX_FILE = "an ONNX file"


def num_gpus() -> int:
    """Returns the number of GPUs that torch can use. Torch holds all weights and features that are on a GPU.

    The number is 0 if torch is missing or cannot be loaded. It is also 0 if torch was not imported yet, and no driver
    has made a device file: torch is then not imported to ask.
    """
    if "torch" not in sys.modules and not any(map(Path.exists, DEVICES)):
        return 0
    try:
        torch = import_package("torch", "a GPU", f"{ADVICE} {AN_ONNX_FILE}")
    except ConfigurationError:
        return 0
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def require_torch(model: str, *, instead: str) -> None:
    """Imports torch for a model that is no ONNX file.

    Args:
        model: the model's name, for the error.
        instead: what the user can take without torch.

    Raises:
        ConfigurationError: torch is not installed, or cannot be loaded.
    """
    import_package("torch", f"model {model} needs the Python package torch", f"{ADVICE} {instead}")
