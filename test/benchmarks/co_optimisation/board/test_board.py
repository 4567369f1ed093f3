"""What a job costs on a simulated board under each policy, and what two jobs can do at the same time."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import split_infer_ros
from benchmarks.co_optimisation.board.board import Board, Job, Launches
from split_infer_ros.buffers.policy import Policy

D, M, H = Policy.DEVICE, Policy.MANAGED, Policy.PINNED
BOARD = Board(
    memory_ms_per_byte=0.5,
    cache_ms_per_byte=0.25,
    copy_ms_per_byte=2.0,
    copy_start_ms=1.0,
    mapping_ms_per_byte=4.0,
    cpu_flush_ms=3.0,
    gpu_flush_ms=5.0,
    launch_ms=2.0,
    kernel_ms=7.0,
    uncached_ms_per_byte=6.0,
)
BYTES = 10


def job(policy: Policy, count: int = 1, kernel_ms: float = 0.0) -> Job:
    return Job(policy, BYTES, (Launches(count, kernel_ms),))


def test_device_memory_is_copied_twice() -> None:
    """Two copies of 1 + 20 ms and a kernel of 2 + 7. The gauge counts what moves or computes."""
    trace = BOARD.run([job(D)])
    assert trace.ends_ms == (2 * 21 + 9,)
    assert trace.load_ms == 2 * 20 + 7


def test_managed_memory_is_mapped_and_flushed() -> None:
    """Pages of 40 ms, one flush of the CPU's cache, and one of the GPU's after each of two kernels."""
    trace = BOARD.run([job(M, count=2)])
    assert trace.ends_ms == (40 + 3 + 2 * (2 + 7 + 5),)
    assert trace.load_ms == 2 * 7


def test_pinned_memory_is_mapped_and_read_past_the_caches() -> None:
    launches = (Launches(1, nbytes=3, cached_bytes=8),)
    cached, uncached = (BOARD.run([Job(policy, BYTES, launches)]) for policy in (D, H))
    assert cached.ends_ms == (2 * 21 + 2 + 7 + 2 * 3 * 0.5 + 8 * 0.25,)
    assert uncached.ends_ms == (40 + 2 + 7 + 2 * 3 * 0.5 + 8 * 0.5 + 10 * 6,)


def test_kernels_under_device_run_while_pages_are_mapped() -> None:
    """The pages take 40 ms. By then the other job's kernel has ended, and its copy back from 30 to 51 has begun."""
    device, managed = BOARD.run([job(D), job(M)]).ends_ms
    assert device == BOARD.run([job(D)]).ends_ms[0] == 51
    assert managed == 51 + 3 + 2 + 7 + 5


def test_a_long_kernel_delays_the_flush() -> None:
    """The kernel under D runs from 21 to 123. The flush has waited since 40, so it comes before the copy back."""
    device, managed = BOARD.run([job(D, kernel_ms=100), job(M)]).ends_ms
    assert device == 21 + 102 + 3 + 21
    assert managed == device + 2 + 7 + 5


def test_two_jobs_under_device_do_not_overlap() -> None:
    assert max(BOARD.run([job(D), job(D)]).ends_ms) == 2 * BOARD.run([job(D)]).ends_ms[0]


def test_pages_of_two_jobs_are_mapped_one_after_the_other() -> None:
    """Each job takes 40 ms for pages, 3 for the CPU's cache, and 14 for the kernel with its flush."""
    assert BOARD.run([job(M), job(M)]).ends_ms == (40 + 40 + 3 + 3 + 14, 40 + 40 + 3 + 3 + 14 + 14)


def test_faster_memory_changes_costs_of_bytes_alone() -> None:
    faster = BOARD.faster_memory(2.0)
    assert faster.run([job(D)]).ends_ms == (2 * (1 + 10) + 9,)
    assert faster.run([job(M)]).ends_ms == (20 + 3 + 2 + 7 + 5,)


def test_board_knows_nothing_of_the_overhead_model() -> None:
    """Nothing in the package imports a benchmark, and the board imports nothing of what it judges."""
    code = (
        "import sys; import benchmarks.co_optimisation.board.fit, benchmarks.co_optimisation.board.memory; "
        "print([name for name in sys.modules if 'memory_cost' in name])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    for path in Path(split_infer_ros.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
                assert not any(name.split(".")[0] == "benchmarks" for name in names), path
