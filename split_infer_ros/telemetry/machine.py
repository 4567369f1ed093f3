"""What machine a measurement was made on, and with which versions."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def describe_machine() -> dict[str, Any]:
    """The facts that a measurement depends on, ready for JSON.

    Returns:
        ``cpu``, ``cores`` (that this process may use), ``memory_bytes``, ``gpu`` and ``gpu_memory_bytes`` (None
        without a GPU), ``system``, and the ``versions`` of python, torch, cuda and ros (None where absent).
    """
    gpu = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    return {
        "cpu": cpu_name(),
        "cores": cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpu": gpu.name if gpu else None,
        "gpu_memory_bytes": gpu.total_memory if gpu else None,
        "system": platform.platform(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda if gpu else None,
            "ros": ros_version(),
        },
    }


def gpu_name(device: str) -> str | None:
    """The model name of a device as torch names it (``cuda:0``); None for the CPU."""
    return None if torch.device(device).type == "cpu" else torch.cuda.get_device_name(device)


def gpu_driver(version: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of NVIDIA's driver; None without one."""
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", version.read_text()) if version.exists() else None
    return match[1] if match else None


def torch_versions(device: str) -> dict[str, str | None]:
    """The versions that run a model on that device: torch, and cuda (None on the CPU)."""
    cuda = None if torch.device(device).type == "cpu" else torch.version.cuda
    return {"torch": torch.__version__, "cuda": cuda}


def cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo"), board: Path = Path("/proc/device-tree/model")) -> str:
    """The processor's model name; of boards whose processor has none (ARM), the board's."""
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    if board.exists():
        return board.read_text().strip("\0\n ")
    return platform.processor() or platform.machine()


def ros_version() -> str | None:
    """The sourced ROS 2's name, or the version of rclpy's wheel; None without ROS."""
    distribution = os.environ.get("ROS_DISTRO")
    if distribution:
        return distribution
    try:
        return f"rclpy {metadata.version('ros-rclpy')}"
    except metadata.PackageNotFoundError:
        return None
