"""Scenes that are unlike those that were judged are noticed, and single images are not."""

from __future__ import annotations

import numpy as np
import pytest

from split_infer_ros.images.encodings import BGR, Pixels
from split_infer_ros.server.improving.scenes import MIN_BRIGHTNESS_MARGIN, RECENT, JudgedRange, JudgedScenes, brightness


def test_the_brightness_is_the_mean_of_the_bytes() -> None:
    assert brightness(Pixels(np.full((480, 640, 3), 77, np.uint8), BGR)) == 77.0
    assert brightness(Pixels(np.full((1, 1, 3), 5, np.uint8), BGR)) == 5.0


@pytest.mark.parametrize("value", [100.0 - MIN_BRIGHTNESS_MARGIN, 100.0, 140.0, 140.0 + MIN_BRIGHTNESS_MARGIN])
def test_values_like_judged_ones_are_in_range(value: float) -> None:
    judged = JudgedRange(MIN_BRIGHTNESS_MARGIN)
    judged.learn(100.0)
    judged.learn(140.0)
    assert not any(judged.is_left_by(value) for _ in range(3 * RECENT))


def test_a_single_flash_does_not_leave_the_range() -> None:
    judged = JudgedRange(MIN_BRIGHTNESS_MARGIN)
    judged.learn(100.0)
    values = [100.0] * RECENT + [255.0] * (RECENT // 2) + [100.0] * RECENT
    assert not any(map(judged.is_left_by, values))


def test_night_leaves_the_range_of_the_day_until_it_is_learnt() -> None:
    scenes = JudgedScenes()
    scenes.learn(120.0, 0.8)
    assert not any(scenes.are_left_by_brightness(120.0) for _ in range(RECENT))
    assert any(scenes.are_left_by_brightness(15.0) for _ in range(RECENT))
    scenes.learn(15.0, 0.8)
    assert not scenes.are_left_by_brightness(15.0)


def test_scores_leave_their_range_and_images_without_objects_say_nothing() -> None:
    scenes = JudgedScenes()
    scenes.learn(120.0, 0.8)
    assert not any(scenes.are_left_by_score(score) for score in [None, 0.8] * RECENT)
    assert any(scenes.are_left_by_score(0.4) for _ in range(RECENT))


def test_before_anything_was_judged_nothing_is_unlike() -> None:
    scenes = JudgedScenes()
    assert not any(scenes.are_left_by_score(0.1) or scenes.are_left_by_brightness(9.0) for _ in range(RECENT))
