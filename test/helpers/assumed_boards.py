"""Assumed constants of two boards, and the workloads of paper 003. Also strategies that draw any machine and task.

All numbers are assumed, except the counts of kernels, because the paper prints no others.
"""

from __future__ import annotations

from hypothesis import strategies as st

from split_infer_ros.memory_cost.constants import ALL_CONSTANTS, MachineConstants
from split_infer_ros.memory_cost.task import Kernel, Task

MB = 10**6

TX2 = MachineConstants(  # copies at 2.5 GB/s; flushes of 4 us each
    copy_start_ms=0.05,
    to_device_ms_per_byte=4e-7,
    to_host_ms_per_byte=4e-7,
    first_touch_ms_per_byte=0.0,
    managed_mapping_ms_per_byte=2e-8,
    pinned_mapping_ms_per_byte=2e-8,
    cpu_flush_ms=0.004,
    gpu_flush_ms=0.004,
    write_back_ms_per_byte=1e-7,
    memory_ms_per_byte=4e-7,
    cache_ms_per_byte=4e-8,
    uncached_read_ms_per_byte=1e-7,
)
AGX = MachineConstants(  # copies ten times as fast, memory 2.5 times, flushes hardly
    copy_start_ms=0.02,
    to_device_ms_per_byte=4e-8,
    to_host_ms_per_byte=4e-8,
    first_touch_ms_per_byte=0.0,
    managed_mapping_ms_per_byte=1e-8,
    pinned_mapping_ms_per_byte=1e-8,
    cpu_flush_ms=0.003,
    gpu_flush_ms=0.003,
    write_back_ms_per_byte=4e-8,
    memory_ms_per_byte=1.6e-7,
    cache_ms_per_byte=2e-8,
    uncached_read_ms_per_byte=4e-8,
)


def workload(name: str, kernels: int, to_device: int, to_host: int, accessed: int | None = None) -> Task:
    """Returns a task whose kernels share the data evenly. The CPU looks at the data after each kernel.

    Each byte is read twice more from the cache.

    Args:
        name: the task's name.
        kernels: the number of kernels.
        to_device, to_host: the bytes that go to the device and come back.
        accessed: the bytes that all kernels access together; by default ``to_device + to_host``.
    """
    accessed = to_device + to_host if accessed is None else accessed
    kernel = Kernel(
        accessed // kernels,
        written_bytes=to_host // kernels,
        mapped_bytes=accessed // kernels,
        cached_bytes=2 * accessed // kernels,
        launches=kernels,
    )
    return Task(name, to_device, to_host, (kernel,), copies=2)


TABLE_IV = {  # workload: policy on TX2, on AGX
    workload("BFS", 24, 32 * MB, 4 * MB): "MM",
    workload("Pathfinder", 512, 32 * MB, 0): "MD",
    workload("NW", 320, 16 * MB, 16 * MB): "MD",
    workload("NN", 1, 8 * MB, 4 * MB): "MM",
    workload("vect-add", 1, 32 * MB, 16 * MB): "MM",
    workload("Gaussian", 1024, MB, MB): "DD",
    workload("Hotspot", 1, 8 * MB, 4 * MB): "MM",
    workload("DJI Drone", 180, 56 * MB, 4 * MB): "MM",
}
AUTOWARE = (  # 599 kernels in three modules, each of which is fastest under D on a TX2 that it has to itself
    workload("YOLO 1", 300, 12 * MB, 0, 300 * MB),
    workload("YOLO 2", 200, 10 * MB, 0, 200 * MB),
    workload("cluster", 99, 5 * MB, 0, 99 * MB),
)

sizes = st.integers(0, 10**8)
drawn_kernels = st.builds(Kernel, sizes, sizes, sizes, st.booleans(), sizes, st.booleans(), st.integers(0, 9))
drawn_tasks = st.builds(
    Task, st.just("drawn"), sizes, sizes, st.lists(drawn_kernels, max_size=5).map(tuple), st.integers(0, 9)
)
drawn_machines = st.builds(MachineConstants, *[st.floats(0, 1)] * len(ALL_CONSTANTS))
