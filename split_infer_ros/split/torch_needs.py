"""What models need of torch, where it is not imported anyway."""

from __future__ import annotations

import sys
from pathlib import Path

from split_infer_ros.engines.engine import import_package
from split_infer_ros.errors import ConfigurationError

# What drivers make for GPUs: NVIDIA's on servers, on Jetsons and under Windows; AMD's.
DEVICES = tuple(map(Path, ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/nvmap", "/dev/dxg", "/dev/kfd")))
ADVICE = 'pip install "torch>=2.6,!=2.13.0" torchvision, or take'
AN_ONNX_FILE = "an ONNX file"


def num_gpus() -> int:
    """Returns the number of GPUs that torch can use, because weights and features on a GPU are its own.

    Without torch, or with one that cannot be loaded, there is none. Where no driver has made a device, torch is not
    imported to ask.
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
        model: whose name the error tells.
        instead: what the user can take without torch.

    Raises:
        ConfigurationError: torch is not installed, or cannot be loaded.
    """
    import_package("torch", f"model {model} needs the Python package torch", f"{ADVICE} {instead}")
