"""The constants of a machine for the overhead model: the rows of paper 003's Table III that a benchmark can find.

This package differs from Table III in four points:

- Units: the table gives l_ini in ms, but Eq. 2 multiplies it by bytes. Here it is in ms/byte. So are l_mem, which
  Eq. 4 multiplies by bytes, and l_L2. Eq. 6 counts accesses; here it counts bytes.
- Symbols with two meanings: here, each meaning has a constant of its own. The symbol l_mapping is the cost of mapping
  managed pages (Eq. 3) and of reaching page-locked pages (Eq. 8). A GPU on a bus moves managed pages and accesses
  page-locked pages in place. The symbol l_mem is the cost of a changed byte until the CPU may read it (Eq. 4). It is
  also the cost of a byte that is read past the cache (Eq. 7).
- Cache latencies: the paper takes hit rates and counts of cache accesses from a profiler, which is not available at
  run time. Here, both latencies are slopes of timed kernels. They contain the latency that parallelism does not hide.
- The CPU's cache: the table has no row for what the CPU loses under H, although the text says that it loses. Here, a
  constant says how much longer the CPU reads a byte of page-locked memory.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any


def _row(symbol: str, description: str) -> Any:
    return dataclasses.field(default=math.nan, metadata={"symbol": symbol, "description": description})


@dataclass(frozen=True)
class MachineConstants:
    """The constants of one machine. NaN means that a constant is unknown or that the machine does not have it.

    The name of a field ends with its unit: ms, or ms for each byte. The metadata of a field has its symbol in Table III
    and a description. ``gpu_flush_ms`` is infinite if nothing bounds the cost of moving changed data back. That is so
    for pages that move over a bus.
    """

    copy_start_ms: float = _row("Tr_ini", "start of a copy")
    to_device_ms_per_byte: float = _row("l_hd", "copy from host to device")
    to_host_ms_per_byte: float = _row("l_dh", "copy from device to host")
    first_touch_ms_per_byte: float = _row("l_ini", "first touch of host memory")
    managed_mapping_ms_per_byte: float = _row("l_mapping (M)", "managed pages mapped on the GPU")
    pinned_mapping_ms_per_byte: float = _row("l_mapping (H)", "page-locked pages reached by the GPU")
    cpu_flush_ms: float = _row("Ca_cpu", "flush of the CPU's cache")
    gpu_flush_ms: float = _row("Ca_gpu", "flush of the GPU's cache, at most")
    write_back_ms_per_byte: float = _row("l_mem (Eq. 4)", "changed data back to the CPU")
    memory_ms_per_byte: float = _row("l_mem (Eq. 7)", "data read again past the cache")
    cache_ms_per_byte: float = _row("l_L2", "data read again from the cache")
    uncached_read_ms_per_byte: float = _row("l_mem (CPU)", "results read by the CPU past its cache")


@dataclass(frozen=True, slots=True)
class Constant:
    """Describes a constant to people.

    Attributes:
        name: the name of the field of ``MachineConstants``.
        symbol: the constant's symbol in Table III.
        description: what costs the time.
    """

    name: str
    symbol: str
    description: str

    @property
    def is_per_byte(self) -> bool:
        """True if the unit is ms/byte, False if it is ms."""
        return self.name.endswith("_ms_per_byte")


ALL_CONSTANTS = tuple(
    Constant(field.name, field.metadata["symbol"], field.metadata["description"])
    for field in dataclasses.fields(MachineConstants)
)
