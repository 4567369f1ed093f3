"""What a machine has of all that the pipeline needs, as findings that say what to do about what is missing.

Nothing here needs ROS, and torch is only imported if it is there: a check-up is run where things do not work.
"""

from __future__ import annotations

import importlib
import os
import platform
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

OK, NOTE, PROBLEM = "ok", "note", "PROBLEM"
MB = 2**20
SHARED_MEMORY_BYTES = 256 * MB  # a few nodes' segments for images, and a slot pool
RECEIVE_BUFFER_BYTES = 4 * MB
OPEN_FILES = 1024

# What the choice of memory that both processors see depends on: (CUDA's name, ours)
GPU_ATTRIBUTES = (
    ("cudaDevAttrIntegrated", "integrated (shares the CPU's memory)"),
    ("cudaDevAttrManagedMemory", "managed memory"),
    ("cudaDevAttrConcurrentManagedAccess", "concurrent managed access"),
    ("cudaDevAttrPageableMemoryAccess", "pageable memory access"),
    ("cudaDevAttrHostRegisterSupported", "host registration"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a check-up.

    Attributes:
        level: OK, NOTE (works, but could be better) or PROBLEM (the pipeline cannot run so).
        what: was looked at.
        found: what is there.
        advice: what to do about it; empty if nothing.
    """

    level: str
    what: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        advice = f"\n{'':10}-> {self.advice}" if self.advice else ""
        return f"{self.level:<8}  {self.what}: {self.found}{advice}"


def check_machine(shared_memory: Path) -> list[Finding]:
    """Everything that has nothing to do with ROS; shared memory lies in that folder."""
    torch = module("torch")
    return [
        Finding(OK, "Machine", f"{platform.machine()}, {platform.platform()}, Python {platform.python_version()}"),
        *check_torch(torch, module("torchvision")),
        *check_gpu(torch),
        check_shared_memory(shared_memory),
        *check_limits(),
    ]


def module(name: str) -> ModuleType | ImportError:
    """A module, or why it cannot be had."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        return error
    except Exception as error:  # a module that is there and broken raises whatever its parts raise
        return ImportError(f"{type(error).__name__}: {error}")


def check_torch(torch: Any, torchvision: Any) -> list[Finding]:
    """Whether both are there, and fit each other."""
    if isinstance(torch, ImportError):
        advice = "pip install torch torchvision; on a Jetson NVIDIA's own wheels (they know its GPU, PyPI's do not)."
        return [Finding(PROBLEM, "torch", f"cannot be imported ({torch})", advice)]
    found = [Finding(OK, "torch", f"{torch.__version__}, built for CUDA {torch.version.cuda or '(none)'}")]
    if isinstance(torchvision, ImportError):
        advice = "install the release of torchvision that belongs to this torch, from the same index."
        return [*found, Finding(PROBLEM, "torchvision", f"cannot be imported ({torchvision})", advice)]
    return [*found, Finding(OK, "torchvision", torchvision.__version__)]


def check_gpu(torch: Any) -> list[Finding]:
    """The GPUs that torch can use, and what CUDA says of their memory."""
    if isinstance(torch, ImportError):
        return []
    if not torch.cuda.is_available():
        has_driver = Path("/dev/nvidiactl").exists() or Path("/dev/nvhost-gpu").exists()
        advice = "the driver is there, so this torch is not built for it: see torch above." if has_driver else ""
        return [Finding(NOTE, "GPU", "none that torch can use; both halves run on the CPU", advice)]
    runtime = module("cuda.bindings.runtime")
    return [_gpu(torch, runtime, index) for index in range(torch.cuda.device_count())]


def _gpu(torch: Any, runtime: Any, index: int) -> Finding:
    facts = torch.cuda.get_device_properties(index)
    words = [f"{facts.name}, {facts.total_memory / 2**30:.1f} GiB, compute {facts.major}.{facts.minor}"]
    if isinstance(runtime, ImportError):
        words.append(f"integrated: {'yes' if getattr(facts, 'is_integrated', False) else 'no'}")
        advice = "pip install cuda-bindings, to know which memory both processors can share."
        return Finding(NOTE, f"GPU {index}", ", ".join(words), advice)
    for name, meaning in GPU_ATTRIBUTES:
        error, value = runtime.cudaDeviceGetAttribute(getattr(runtime.cudaDeviceAttr, name), index)
        known = error == runtime.cudaError_t.cudaSuccess
        words.append(f"{meaning}: {('yes' if value else 'no') if known else 'not told'}")
    return Finding(OK, f"GPU {index}", ", ".join(words))


def check_shared_memory(folder: Path) -> Finding:
    """Room where Fast DDS and the transport ``shared_memory`` put what processes of this host share."""
    what = f"Shared memory ({folder})"
    advice = f"mount it larger (mount -o remount,size=1G {folder}; of a container: --shm-size=1g or --ipc=host)."
    try:
        facts = os.statvfs(folder)
    except OSError as error:
        return Finding(NOTE, what, f"not there ({error.strerror}); images go through sockets, slowly", advice)
    size, free = facts.f_frsize * facts.f_blocks, facts.f_frsize * facts.f_bavail
    found = f"{size / MB:,.0f} MB, {free / MB:,.0f} MB free"
    if not os.access(folder, os.W_OK):
        return Finding(NOTE, what, f"{found}, not writable; transport shared_memory cannot be used", advice)
    return Finding(NOTE, what, found, advice) if free < SHARED_MEMORY_BYTES else Finding(OK, what, found)


def check_limits(receive_buffer: Path = Path("/proc/sys/net/core/rmem_max")) -> list[Finding]:
    """What the system allows this process."""
    findings = []
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    advice = "" if _enough(files, OPEN_FILES) else f"raise it: ulimit -n {OPEN_FILES}."
    findings.append(Finding(NOTE if advice else OK, "Open files", f"at most {_amount(files)}", advice))
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    found = "without limit" if locked == resource.RLIM_INFINITY else f"at most {locked / MB:,.0f} MB"
    findings.append(Finding(OK, "Locked memory", found))
    if receive_buffer.exists():
        size = int(receive_buffer.read_text())
        few = size < RECEIVE_BUFFER_BYTES
        advice = (
            f"features and images from other hosts may be lost: sysctl -w net.core.rmem_max={8 * RECEIVE_BUFFER_BYTES}."
        )
        findings.append(
            Finding(NOTE if few else OK, "Socket buffers (net.core.rmem_max)", f"{size:,} bytes", advice if few else "")
        )
    return findings


def page(findings: Sequence[Finding]) -> str:
    """All findings, and what they come to."""
    problems = sum(finding.level == PROBLEM for finding in findings)
    end = f"{problems} problem{'s' * (problems != 1)} to be solved first." if problems else "The pipeline can run."
    return "\n".join([*map(str, findings), end])


def _enough(value: int, needed: int) -> bool:
    return value == resource.RLIM_INFINITY or value >= needed


def _amount(value: int) -> str:
    return "any number" if value == resource.RLIM_INFINITY else f"{value:,}"
