"""The files that drivers of GPUs make. They tell about a GPU without torch, whose import takes seconds."""

from __future__ import annotations

from pathlib import Path

NVIDIA = tuple(map(Path, ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/nvmap")))  # servers', then Jetsons'
OTHERS = tuple(map(Path, ("/dev/dxg", "/dev/kfd")))  # any GPU under Windows, and AMD's


def has_nvidia_driver() -> bool:
    """Returns whether a driver of NVIDIA is loaded, be it of a graphics card or of a Jetson."""
    return any(path.exists() for path in NVIDIA)
