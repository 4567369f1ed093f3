"""Calls of a network on several lanes."""

from __future__ import annotations

import threading

import pytest
import torch

from split_infer_ros.autotuning.lane_run import LaneRun


def test_lanes_run_at_the_same_time() -> None:
    together = threading.Barrier(2, timeout=30)
    seen: list[tuple[int, bool]] = []
    prepared: list[int] = []

    def run() -> None:
        together.wait()
        seen.append((threading.get_ident(), torch.is_inference_mode_enabled()))

    lanes = LaneRun(run, 2, lambda: prepared.append(threading.get_ident()))
    lanes()
    assert len(seen) == 4, "the first call starts the threads"
    assert len({thread for thread, _ in seen}) == 2
    assert {thread for thread, _ in seen} == set(prepared)
    assert all(is_inference for _, is_inference in seen)
    assert lanes.per_batch([2.0, 3.0]) == [1.0, 1.5]


def test_one_lane_is_the_calling_thread() -> None:
    seen: list[int] = []
    alone = LaneRun(lambda: seen.append(threading.get_ident()), 1, lambda: None)
    assert not seen
    alone()
    assert seen == [threading.get_ident()]
    assert alone.per_batch([2.0]) == [2.0]


def test_error_of_a_lane_is_raised() -> None:
    def fail() -> None:
        raise ValueError("no kernel")

    with pytest.raises(ValueError, match="no kernel"):
        LaneRun(fail, 2, lambda: None)
