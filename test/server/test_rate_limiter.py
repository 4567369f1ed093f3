"""Frames of cameras at given rates, against limits."""

from __future__ import annotations

import random

import pytest

from split_infer_ros.server.rate_limiter import RateLimiter


def admitted(limiter: RateLimiter, times: list[float], source: str = "left") -> int:
    return sum(limiter.admits(source, now) for now in times)


def every(period: float, seconds: float, start: float = 100.0) -> list[float]:
    return [start + period * index for index in range(round(seconds / period))]


def test_zero_means_no_limit() -> None:
    assert admitted(RateLimiter(0.0), [1.0] * 100) == 100


def test_camera_below_the_limit_loses_no_frame() -> None:
    assert admitted(RateLimiter(31.0), every(1 / 30, 10)) == 300


def test_camera_at_the_limit_loses_no_frame_to_jitter() -> None:
    rng = random.Random(1)
    times = [now + rng.uniform(0.0, 0.04 / 30) for now in every(1 / 30, 10)]
    assert admitted(RateLimiter(30.0), times) == 300


@pytest.mark.parametrize(("camera", "limit"), [(33.0, 30.0), (30.0, 10.0), (100.0, 7.0), (1000.0, 1.0)])
def test_faster_camera_gets_at_least_nine_tenths_of_the_limit(camera: float, limit: float) -> None:
    seconds = 10.0
    count = admitted(RateLimiter(limit), every(1 / camera, seconds))
    assert 0.9 * limit * seconds <= count <= limit * seconds + 1


def test_no_burst_follows_a_pause() -> None:
    limiter = RateLimiter(10.0)
    assert limiter.admits("left", 0.0)
    assert admitted(limiter, every(0.001, 0.5, start=60.0)) in (5, 6)


def test_each_camera_has_its_own_limit() -> None:
    limiter = RateLimiter(1.0)
    assert limiter.admits("left", 0.0)
    assert limiter.admits("right", 0.0)
    assert not limiter.admits("left", 0.1)


def test_new_limit_applies_to_the_next_frames() -> None:
    limiter = RateLimiter(0.1)
    assert limiter.admits("left", 0.0)
    limiter.max_rate_hz = 10.0
    assert admitted(limiter, every(0.01, 1.0, start=0.1)) >= 9
