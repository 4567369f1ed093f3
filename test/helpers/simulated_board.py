"""A simulated board with assumed costs, for tests that need no fit."""

from __future__ import annotations

from benchmarks.co_optimisation.board.board import Board

BOARD = Board(
    memory_ms_per_byte=2e-8,
    cache_ms_per_byte=5e-9,
    copy_ms_per_byte=1.5e-7,
    copy_start_ms=0.04,
    mapping_ms_per_byte=4e-8,
    cpu_flush_ms=0.03,
    gpu_flush_ms=0.005,
    launch_ms=0.008,
    kernel_ms=0.02,
    uncached_ms_per_byte=8e-8,
)
