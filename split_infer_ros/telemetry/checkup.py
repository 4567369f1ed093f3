"""Checks whether this machine has what the pipeline needs. Each finding about a missing thing gives advice.

Users run a check-up on machines where things do not work. Therefore nothing here needs ROS, and torch may be missing.
"""

from __future__ import annotations

import enum
import importlib
import os
import platform
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from split_infer_ros.runtime.gpu_files import has_nvidia_driver
from split_infer_ros.runtime.usage_reports import stop_usage_reports
from split_infer_ros.telemetry.sensors import Sensors

MB = 2**20
SHARED_MEMORY_BYTES = 256 * MB  # room for the image segments of a few nodes and for a slot pool
RECEIVE_BUFFER_BYTES = 4 * MB
OPEN_FILES = 1024

# The attributes that decide which memory both processors can share, each with CUDA's name and ours.
GPU_ATTRIBUTES = (
    ("cudaDevAttrIntegrated", "integrated (shares the CPU's memory)"),
    ("cudaDevAttrManagedMemory", "managed memory"),
    ("cudaDevAttrConcurrentManagedAccess", "concurrent managed access"),
    ("cudaDevAttrPageableMemoryAccess", "pageable memory access"),
    ("cudaDevAttrHostRegisterSupported", "host registration"),
)


class Level(enum.Enum):
    """How serious a finding is."""

    OK = "ok"
    NOTE = "note"  # the pipeline runs, but could run better
    PROBLEM = "PROBLEM"  # the pipeline cannot run


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a check-up.

    Attributes:
        level: how serious the finding is.
        what: the thing that was checked.
        found: the result of the check.
        advice: what the user should do; empty if there is nothing to do.
    """

    level: Level
    what: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        advice = f"\n{'':10}-> {self.advice}" if self.advice else ""
        return f"{self.level.value:<8}  {self.what}: {self.found}{advice}"


def check_machine(shared_memory: Path) -> list[Finding]:
    """Runs all checks that do not concern ROS.

    Args:
        shared_memory: the folder in which Linux shows shared memory.
    """
    torch = try_import("torch")
    return [
        Finding(
            Level.OK, "Machine", f"{platform.machine()}, {platform.platform()}, Python {platform.python_version()}"
        ),
        *check_torch(torch, try_import("torchvision")),
        *check_gpu(torch),
        *check_engines(try_import("onnx"), try_import("onnxruntime"), try_import("openvino")),
        *check_sensors(Sensors.find()),
        check_shared_memory(shared_memory),
        *check_limits(),
    ]


def try_import(name: str) -> ModuleType | ImportError:
    """Returns a module, or the error that its import raised. The module sends no reports of its use."""
    stop_usage_reports()
    try:
        return importlib.import_module(name)
    except ImportError as error:
        return error
    except Exception as error:  # a broken module can raise any error
        return ImportError(f"{type(error).__name__}: {error}")


def check_torch(torch: Any, torchvision: Any) -> list[Finding]:
    """Checks that torch and torchvision can be imported. Takes results of ``try_import``."""
    if isinstance(torch, ImportError):
        advice = "pip install torch torchvision; on a Jetson NVIDIA's own wheels (they know its GPU, PyPI's do not)."
        level = Level.NOTE if isinstance(torch, ModuleNotFoundError) else Level.PROBLEM  # not installed, or broken
        found = f"cannot be imported ({torch}); ONNX files and shapes run on a CPU without it, and nothing else does"
        return [Finding(level, "torch", found, advice=advice)]
    findings = [Finding(Level.OK, "torch", f"{torch.__version__}, built for CUDA {torch.version.cuda or '(none)'}")]
    if isinstance(torchvision, ImportError):
        advice = "install the release of torchvision that belongs to this torch, from the same index."
        return [*findings, Finding(Level.PROBLEM, "torchvision", f"cannot be imported ({torchvision})", advice=advice)]
    return [*findings, Finding(Level.OK, "torchvision", torchvision.__version__)]


def check_engines(onnx: Any, onnxruntime: Any, openvino: Any) -> list[Finding]:
    """Checks which engines other than torch can be used, and whether ONNX files can be read.

    Takes results of ``try_import``.
    """
    findings = []
    for name, module, use in (
        ("onnx", onnx, "no ONNX file can be read, and engine torch is the only one"),
        ("onnxruntime", onnxruntime, "engine onnxruntime cannot be used"),
        ("openvino", openvino, "engine openvino cannot be used"),
    ):
        if isinstance(module, ImportError):
            advice = "pip install onnx onnxscript onnx2torch onnxruntime openvino."
            findings.append(Finding(Level.NOTE, name, f"cannot be imported ({module}); {use}", advice=advice))
        else:
            findings.append(Finding(Level.OK, name, str(module.__version__)))
    return findings


def check_gpu(torch: Any) -> list[Finding]:
    """Checks which GPUs torch can use, and which memory they can share with the CPU.

    Takes the result of ``try_import``. Without torch, there are no findings.
    """
    if isinstance(torch, ImportError):
        return []
    if not torch.cuda.is_available():
        advice = ""
        if has_nvidia_driver():
            advice = "the driver is there, so this torch is not built for it: see torch above."
        return [Finding(Level.NOTE, "GPU", "none that torch can use; both partitions run on the CPU", advice=advice)]
    runtime = try_import("cuda.bindings.runtime")
    return [_gpu(torch, runtime, index) for index in range(torch.cuda.device_count())]


def _gpu(torch: Any, runtime: Any, index: int) -> Finding:
    gpu = torch.cuda.get_device_properties(index)
    parts = [f"{gpu.name}, {gpu.total_memory / 2**30:.1f} GiB, compute {gpu.major}.{gpu.minor}"]
    if isinstance(runtime, ImportError):
        parts.append(f"integrated: {'yes' if getattr(gpu, 'is_integrated', False) else 'no'}")
        advice = "pip install cuda-bindings, to know which memory both processors can share."
        return Finding(Level.NOTE, f"GPU {index}", ", ".join(parts), advice=advice)
    for name, meaning in GPU_ATTRIBUTES:
        error, value = runtime.cudaDeviceGetAttribute(getattr(runtime.cudaDeviceAttr, name), index)
        answer = "yes" if value else "no"
        if error != runtime.cudaError_t.cudaSuccess:
            answer = "not told"
        parts.append(f"{meaning}: {answer}")
    return Finding(Level.OK, f"GPU {index}", ", ".join(parts))


def check_sensors(sensors: Sensors) -> list[Finding]:
    """Checks which sensors of power, energy and temperature answer, and why others do not."""
    readings, faults = sensors.read(), sensors.faults()
    found = ", ".join(f"{reading.name} {reading.value:.1f} {reading.unit.value}" for reading in readings)
    findings = [Finding(Level.OK, "Sensors", found)] if found else []
    if faults:
        told = "; ".join(f"{name}: {fault}" for name, fault in faults.items())
        advice = "they count neither for the energy nor for max_temperature_c."
        findings.append(Finding(Level.NOTE, "Silent sensors", told, advice=advice))
    if not findings:
        advice = "there is nothing to do: stats tell no energy, and max_temperature_c has no effect."
        findings.append(Finding(Level.NOTE, "Sensors", "none of power, energy or temperature", advice=advice))
    return findings


def check_shared_memory(folder: Path) -> Finding:
    """Checks how much shared memory is free in its folder. Fast DDS and the transport ``shared_memory`` use it."""
    what = f"Shared memory ({folder})"
    advice = f"mount it larger (mount -o remount,size=1G {folder}; of a container: --shm-size=1g or --ipc=host)."
    try:
        room = os.statvfs(folder)
    except OSError as error:
        return Finding(
            Level.NOTE, what, f"not there ({error.strerror}); images go through sockets, slowly", advice=advice
        )
    size, free = room.f_frsize * room.f_blocks, room.f_frsize * room.f_bavail
    found = f"{size / MB:,.0f} MB, {free / MB:,.0f} MB free"
    if not os.access(folder, os.W_OK):
        return Finding(
            Level.NOTE, what, f"{found}, not writable; transport shared_memory cannot be used", advice=advice
        )
    return (
        Finding(Level.NOTE, what, found, advice=advice)
        if free < SHARED_MEMORY_BYTES
        else Finding(Level.OK, what, found)
    )


def check_limits(receive_buffer: Path = Path("/proc/sys/net/core/rmem_max")) -> list[Finding]:
    """Checks the limits of this process: open files, locked memory and socket buffers.

    Args:
        receive_buffer: the file in which Linux shows the largest receive buffer of a socket, in bytes.
    """
    findings = [_open_files(), _locked_memory()]
    if receive_buffer.exists():
        findings.append(_socket_buffers(int(receive_buffer.read_text())))
    return findings


def _open_files() -> Finding:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    found = f"at most {'any number' if files == resource.RLIM_INFINITY else f'{files:,}'}"
    if files == resource.RLIM_INFINITY or files >= OPEN_FILES:
        return Finding(Level.OK, "Open files", found)
    return Finding(Level.NOTE, "Open files", found, advice=f"raise it: ulimit -n {OPEN_FILES}.")


def _locked_memory() -> Finding:
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    found = "without limit" if locked == resource.RLIM_INFINITY else f"at most {locked / MB:,.0f} MB"
    return Finding(Level.OK, "Locked memory", found)


def _socket_buffers(size: int) -> Finding:
    what, found = "Socket buffers (net.core.rmem_max)", f"{size:,} bytes"
    if size >= RECEIVE_BUFFER_BYTES:
        return Finding(Level.OK, what, found)
    setting = f"sysctl -w net.core.rmem_max={8 * RECEIVE_BUFFER_BYTES}"
    return Finding(Level.NOTE, what, found, advice=f"features and images from other hosts may be lost: {setting}.")


def format_findings(findings: Sequence[Finding]) -> str:
    """Returns all findings and a conclusion as text. The conclusion is the last line."""
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    end = f"{problems} problem{'s' * (problems != 1)} to be solved first." if problems else "The pipeline can run."
    return "\n".join([*map(str, findings), end])
