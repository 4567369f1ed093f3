"""A task in the form of a model: its objects pass through a slot unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.errors import ConfigurationError, UnknownModelError
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.takes import Takes
from split_infer_ros.runtime.device import Device
from split_infer_ros.tasks.task import MAX_OBJECTS
from split_infer_ros.tasks.task_model import TaskModel, TaskNetwork


class Repeating:
    """Returns for each frame what the frame holds: detections."""

    name, identity, labels = "task:repeating", "repeating", ("one", "two", "three")

    def __init__(self, takes: Takes) -> None:
        self.takes = takes
        self.is_closed = False

    def example(self) -> Detections:
        return drawn(self.takes, 3)

    def check(self, payload: Any) -> None:
        """Takes anything."""

    def run(self, batch: Sequence[Any]) -> Sequence[Detections]:
        return list(batch)

    def close(self) -> None:
        self.is_closed = True


def drawn(takes: Takes, count: int, seed: int = 0) -> Detections:
    """Returns objects with scores in descending order."""
    random = np.random.default_rng(seed)
    corners = random.uniform(0, 10, (count, 2, takes.box_numbers // 2)).astype(np.float32)
    boxes = np.concatenate((corners.min(1), corners.max(1)), 1)
    scores = -np.sort(-random.uniform(0, 1, count).astype(np.float32))
    return Detections(boxes, scores, random.integers(3, size=count))


def through_slot(model: TaskModel, frames: Sequence[Detections], limits: Limits) -> list[Detections]:
    """Returns what the head gives for a batch."""
    batch = np.empty(len(frames), object)
    batch[:] = frames
    features = model.backbone("output")(batch)
    specs = model.split_point("output").tensors
    assert [(each.shape[1:], each.dtype) for each in features] == [(spec.shape, spec.dtype) for spec in specs]
    return model.entry.detections_of(model.head("output")(*features), limits)


@pytest.mark.parametrize("takes", Takes)
@given(counts=st.lists(st.integers(0, 20), min_size=1, max_size=4), threshold=st.floats(0, 1, width=32))
def test_objects_come_back_as_the_task_found_them(takes: Takes, counts: list[int], threshold: float) -> None:
    model = TaskModel(TaskNetwork(Repeating(takes)))
    frames = [drawn(takes, count, seed) for seed, count in enumerate(counts)]
    for frame, found in zip(frames, through_slot(model, frames, Limits(score_threshold=threshold)), strict=True):
        kept = frame.where(frame.scores >= np.float32(threshold))
        for name in ("boxes", "scores", "labels"):
            np.testing.assert_array_equal(getattr(found, name), getattr(kept, name))  # equal bits: they are copied
        in_source = model.entry.in_source(found, 480, 640)
        np.testing.assert_array_equal(in_source.boxes, found.boxes)


def test_of_too_many_objects_the_best_ones_stay() -> None:
    model = TaskModel(TaskNetwork(Repeating(Takes.POINTS)))
    many = drawn(Takes.POINTS, MAX_OBJECTS + 50)
    shuffled = many.where(np.random.default_rng(1).permutation(len(many)))
    (found,) = through_slot(model, [shuffled], Limits(score_threshold=0.0, max_detections=MAX_OBJECTS))
    np.testing.assert_array_equal(found.scores, many.scores[:MAX_OBJECTS])  # equal bits: they are copied


def test_it_closes_its_task_and_shows_its_example() -> None:
    task = Repeating(Takes.IMAGES)
    model = TaskModel(TaskNetwork(task))
    assert [len(frame) for frame in model.blank_images(2)] == [3, 3]
    assert model.engine_text == "task"
    model.close()
    assert task.is_closed


def test_it_runs_on_the_cpu_alone() -> None:
    with pytest.raises(ConfigurationError, match="task:repeating runs on the CPU, and this node's device is cuda:0"):
        TaskModel(TaskNetwork(Repeating(Takes.POINTS)), Device("cuda:0"))


def test_a_single_pipeline_refuses_it_by_name() -> None:
    with pytest.raises(UnknownModelError, match="'task:clusters' is a task and no model: only a tenant"):
        find_model("task:clusters")
