"""What models need of torch, where it is not imported anyway."""

from __future__ import annotations

from split_infer_ros.engines.engine import import_package
from split_infer_ros.errors import ConfigurationError

ADVICE = 'pip install "torch>=2.6,!=2.13.0" torchvision, or take an ONNX file'


def num_gpus() -> int:
    """Returns the number of GPUs that torch can use, which imports torch: weights and features on a GPU are its own.

    Without torch, or with one that cannot be loaded, there is none.
    """
    try:
        torch = import_package("torch", "a GPU", ADVICE)
    except ConfigurationError:
        return 0
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def require_torch(model: str) -> None:
    """Imports torch for a model that is no ONNX file.

    Raises:
        ConfigurationError: torch is not installed, or cannot be loaded.
    """
    import_package("torch", f"model {model} needs the Python package torch", ADVICE)
