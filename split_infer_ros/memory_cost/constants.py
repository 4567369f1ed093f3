"""What the overhead model knows of a machine: the rows of Table III that are found by benchmarking.

Table III is not followed to the letter in three places:

- l_ini is given in ms, but Eq. 2 multiplies it by bytes: it is ms/byte here. So is l_mem, which Eq. 4 multiplies by
  bytes; l_L2 goes with it, and what Eq. 6 counts in accesses is counted in bytes.
- One symbol stands for what proved to be two things. l_mapping is the managed pages' (Eq. 3) and the page-locked
  ones' (Eq. 8): a GPU on a bus moves the former and reaches for the latter. l_mem is what a changed byte costs until
  the CPU may read it (Eq. 4), and what a byte costs that is read past the cache (Eq. 7).
- Hit rates and counts of cache accesses come from a profiler, which is not to be had at run time: both latencies are
  slopes of timed kernels, which hold whatever of the latency parallelism does not hide.
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
    """Constants of one machine; NaN stands for one that is not known, or that the machine does not have.

    ``gpu_flush_ms`` is infinite where nothing bounds the way back of changed data, as where pages move over a bus.
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


@dataclass(frozen=True, slots=True)
class Row:
    """One of the constants, for people."""

    name: str
    symbol: str
    description: str

    @property
    def of_bytes(self) -> bool:
        """True if it is in ms/byte, False if in ms."""
        return self.name.endswith("_ms_per_byte")


ROWS = tuple(
    Row(found.name, found.metadata["symbol"], found.metadata["description"])
    for found in dataclasses.fields(MachineConstants)
)
