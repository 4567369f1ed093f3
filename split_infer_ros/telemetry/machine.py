"""Describes the machine and the software versions on which a measurement depends."""

from __future__ import annotations

import functools
import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

from split_infer_ros.runtime.device import Device

# Extensions that decide which kernels oneDNN chooses, beyond those that torch reports. The names are those in
# /proc/cpuinfo on x86-64 and ARM.
_EXTENSIONS = re.compile(
    r"avx2|avx512f|avx512_(vnni|bf16|fp16)|avx_vnni\w*|avx_ne_convert|avx10\w*|amx_\w+"
    r"|asimd(dp|hp)|(sve)?(bf16|i8mm)|sve2?|sme(2|fa64|[ibf]\d\w*)?"
)
# torch's names for the vector instructions that it uses on x86-64, widest first, and the extensions that each needs.
_CAPABILITIES = {
    "AVX512": {"avx512vl", "avx512bw", "avx512dq", "fma"},
    "AVX2": {"avx2", "fma"},
    "DEFAULT": set[str](),
}
_CAPABILITY_LIMIT = "ATEN_CPU_CAPABILITY"  # an environment variable that torch reads
_TORCH_VERSION = re.compile(r"^__version__ = '([^']+)'", re.MULTILINE)
_CUDA_VERSION = re.compile(r"^cuda\b.*= '([^']+)'", re.MULTILINE)
_OTHER_DISTRIBUTIONS = {"onnxruntime": ("onnxruntime-gpu", "onnxruntime-openvino")}  # they hold the same package
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")  # the user's environment variables; the first that is set counts


def describe_machine() -> dict[str, Any]:
    """Returns the facts that a measurement depends on, ready for JSON.

    Returns:
        ``cpu``, ``instruction_set``, ``cores`` (that this process may use), ``memory_bytes``, ``gpu``,
        ``gpu_memory_bytes``, ``system`` and ``versions``. Without a GPU, the values for it are None. ``versions`` has
        the versions of python, torch, cuda and ros; None for each that is absent.
    """
    import torch  # only in functions, because a process on a CPU may lack torch

    gpu = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    return {
        "cpu": cpu_name(),
        "instruction_set": instruction_set(),
        "cores": num_cores(),
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
    """Returns the model name of a device; None for the CPU. ``device`` is torch's name, for example ``cuda:0``."""
    if Device(device).type == "cpu":
        return None
    import torch

    return torch.cuda.get_device_name(device)


def gpu_driver(version: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Returns the version of NVIDIA's driver, which Linux shows in the file ``version``; None without a driver."""
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", version.read_text()) if version.exists() else None
    return match[1] if match else None


@functools.cache
def installed_torch() -> tuple[str | None, str | None]:
    """Returns the versions of torch and of its CUDA, without importing torch; None for each that is absent.

    Both are read from a file of torch, because the metadata of some wheels leaves out the part behind ``+``.
    """
    try:
        distribution = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return None, None
    file = Path(str(distribution.locate_file("torch/version.py")))
    text = file.read_text() if file.exists() else ""
    version, cuda = _TORCH_VERSION.search(text), _CUDA_VERSION.search(text)
    return version[1] if version else distribution.version, cuda[1] if cuda else None


def torch_versions(device: str) -> dict[str, str | None]:
    """Returns the releases of ``torch`` and ``cuda`` that run models on a device, without importing torch.

    ``device`` is torch's name, for example ``cuda:0``. A release is None if the package is absent; ``cuda`` also on the
    CPU.
    """
    version, cuda = installed_torch()
    return {"torch": version and release(version), "cuda": None if Device(device).type == "cpu" else cuda}


@functools.cache
def package_version(package: str) -> str:
    """Returns the whole version of an installed package; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@functools.cache  # a look-up takes 0.25 ms, and a database has many records
def engine_version(engine: str) -> str | None:
    """Returns the release of an engine's package, such as ``openvino``; None if it is not installed.

    A process looks the release up once. It does not notice an engine that is installed later.
    """
    for distribution in (engine, *_OTHER_DISTRIBUTIONS.get(engine, ())):
        try:
            return release(metadata.version(distribution))
        except metadata.PackageNotFoundError:
            continue
    return None


def release(version: str) -> str:
    """Returns a version without its patch level: ``2.15+cu132`` for ``2.15.0+cu132``.

    A patch release fixes faults and keeps the kernels. Builds before a release may change kernels, so their version is
    returned unchanged.
    """
    match = re.fullmatch(r"(\d+\.\d+)\.\d+(\+.*)?", version)
    return match[1] + (match[2] or "") if match else version


def instruction_set(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Returns a text about the CPU that decides which kernels run. Equal texts mean the same kernels.

    An example is ``AVX2 (avx2 avx512_vnni avx512f), oneDNN up to AVX2``. The text begins with the capability that torch
    uses, which ATEN_CPU_CAPABILITY can lower; on ARM it is DEFAULT. The processor's extensions that oneDNN uses follow
    in brackets. The last part is the limit that the user set for oneDNN, if there is one.

    Args:
        cpuinfo: the file in which Linux describes the processors.
    """
    flags = cpu_extensions(cpuinfo)
    limit = onednn_limit()
    extensions = f" ({' '.join(sorted(flags))})" if flags else ""
    return _capability(_cpu_flags(cpuinfo)) + extensions + (f", oneDNN up to {limit}" if limit else "")


def _capability(flags: frozenset[str]) -> str:
    limit = os.environ.get(_CAPABILITY_LIMIT, "")
    if limit.islower() and limit.upper() in _CAPABILITIES:
        return limit.upper()
    return next(name for name, needed in _CAPABILITIES.items() if needed <= flags)


def onednn_limit() -> str:
    """Returns the widest instruction set that oneDNN may use, in upper case; empty without a limit of the user."""
    return next((os.environ[name].upper() for name in _LIMITS if os.environ.get(name)), "")


def cpu_extensions(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Returns Linux's names of the processor's extensions that decide which kernels run, such as ``avx512_bf16``.

    All processors of a machine have the same extensions.
    """
    return frozenset(flag for flag in _cpu_flags(cpuinfo) if _EXTENSIONS.fullmatch(flag))


def _cpu_flags(cpuinfo: Path) -> frozenset[str]:
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    for name, _, values in (line.partition(":") for line in lines):
        if name.strip() in ("flags", "Features"):
            return frozenset(values.split())
    return frozenset()


def num_cores() -> int:
    """Returns the number of logical processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo"), board: Path = Path("/proc/device-tree/model")) -> str:
    """Returns the processor's model name. If there is none, as on ARM boards, returns the board's model name."""
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    if board.exists():
        return board.read_text().strip("\0\n ")
    return platform.processor() or platform.machine()


def ros_version() -> str | None:
    """Returns the name of the sourced ROS 2 distribution, or the version of rclpy's wheel; None without ROS."""
    distribution = os.environ.get("ROS_DISTRO")
    if distribution:
        return distribution
    try:
        return f"rclpy {metadata.version('ros-rclpy')}"
    except metadata.PackageNotFoundError:
        return None
