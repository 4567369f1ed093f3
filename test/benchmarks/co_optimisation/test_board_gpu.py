"""Applications on a simulated board, and what the package's calibration finds there."""

from __future__ import annotations

import pytest
from simulated_board import BOARD

from benchmarks.co_optimisation.board_gpu import BoardGpu, calibrate_board, job, launches
from benchmarks.co_optimisation.runs import Application
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.memory_cost.co_run_schedule import ReleasedTask

D, M, H = Policy.DEVICE, Policy.MANAGED, Policy.PINNED
SIZE = 1 << 20
APPLICATION = Application("search", 1, 24, share=1 / 24, rereads=2)


def test_calibration_finds_the_costs_of_a_board() -> None:
    constants = calibrate_board(BOARD)
    assert constants.copy_start_ms == pytest.approx(BOARD.copy_start_ms)
    assert constants.to_device_ms_per_byte == pytest.approx(BOARD.copy_ms_per_byte)
    assert constants.managed_mapping_ms_per_byte == pytest.approx(BOARD.mapping_ms_per_byte)
    assert constants.cpu_flush_ms == pytest.approx(BOARD.cpu_flush_ms)
    assert constants.gpu_flush_ms == pytest.approx(BOARD.gpu_flush_ms)
    assert constants.cache_ms_per_byte == pytest.approx(BOARD.cache_ms_per_byte)
    assert constants.memory_ms_per_byte == pytest.approx(BOARD.memory_ms_per_byte)
    assert constants.uncached_read_ms_per_byte == pytest.approx(BOARD.uncached_ms_per_byte)
    assert constants.first_touch_ms_per_byte == 0


def test_memory_of_each_policy_stays_allocated() -> None:
    gpu = BoardGpu(BOARD, {"search": APPLICATION}, SIZE)
    task = APPLICATION.task(SIZE, gpu.execution_ms(APPLICATION))
    for policy, in_all in ((D, 2), (D, 2), (M, 3), (H, 4), (M, 4)):
        gpu([ReleasedTask(task, policy)])
        assert gpu.memory_bytes == in_all * 2 * SIZE  # data goes to the GPU and comes back


def test_response_is_execution_and_what_the_policy_costs() -> None:
    gpu = BoardGpu(BOARD, {"search": APPLICATION}, SIZE)
    execution_ms = gpu.execution_ms(APPLICATION)
    (response_ms,) = gpu([ReleasedTask(APPLICATION.task(SIZE, execution_ms), D)])
    assert response_ms == pytest.approx(execution_ms + 2 * (BOARD.copy_start_ms + SIZE * BOARD.copy_ms_per_byte))
    assert 0 < gpu.load_ms < response_ms


def test_kernels_are_those_of_the_application() -> None:
    first, others = launches(APPLICATION, SIZE)
    assert (first.count, first.nbytes, others.count) == (1, SIZE, 23)
    assert others.nbytes == pytest.approx(SIZE / 24, rel=1e-4)
    assert job(APPLICATION, SIZE, M).nbytes == SIZE
