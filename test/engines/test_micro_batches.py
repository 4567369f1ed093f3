"""Batches that are computed in several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from comparisons import rounding
from onnx_nets import IMAGE_SHAPE, boxes_without_batch
from onnx_nets import images as noise
from onnx_nets import run as run_alone
from small_graphs import CHANNELS, ROUNDING, SIDE, images, in_torch, small_graph

from split_infer_ros.buffers.host_arrays import as_array
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.executable import make_executable
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.micro_batches import MicroBatchPart
from split_infer_ros.engines.onnxruntime_part import OnnxRuntimePart

pytestmark = pytest.mark.numeric


def test_images_run_one_by_one() -> None:
    alone = OnnxRuntimePart(small_graph(batch=1))
    part, batch = MicroBatchPart(alone), images(3)
    features, means = part(batch)
    assert features.shape == (3, CHANNELS, SIDE, SIDE)
    assert not torch.equal(features[0], features[1])
    for index in range(3):  # the same session on the same memory: equal to the bit
        for found, expected in zip((features, means), alone(batch[index : index + 1]), strict=True):
            assert torch.equal(found[index : index + 1], expected)


class Runs:
    """Notes how many images each run of a part has."""

    def __init__(self, part: OnnxRuntimePart, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        run = part.run_prepared

        def noted(outputs: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
            self.sizes.append(len(tensors[0]))
            return run(outputs, tensors)

        monkeypatch.setattr(part, "run_prepared", noted)


@pytest.mark.parametrize(
    ("num_images", "count", "sizes"), [(2, 5, [2, 2, 1]), (2, 4, [2, 2]), (4, 3, [3]), (1, 2, [1, 1]), (8, 8, [8])]
)
def test_each_run_has_a_few_images(
    num_images: int, count: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, batch = OnnxRuntimePart(small_graph()), images(count)
    expected = [torch.cat(parts) for parts in zip(*(alone(few) for few in batch.split(num_images)), strict=True)]
    runs = Runs(alone, monkeypatch)
    for found, wanted in zip(MicroBatchPart(alone, num_images)(batch), expected, strict=True):
        assert torch.equal(found, wanted)  # the same session runs the same numbers of images
    assert runs.sizes == sizes


@pytest.mark.parametrize("engine", [Engine.ONNXRUNTIME, Engine.OPENVINO])
def test_config_says_how_many_images_run_at_once(engine: Engine) -> None:
    pytest.importorskip(engine.value)
    config = ExecutionConfig(engine=engine, micro_batch=2)
    assert ExecutionConfig.from_json(config.as_json()) == config
    part = make_executable(small_graph(), config)
    assert isinstance(part, MicroBatchPart)
    assert not isinstance(make_executable(small_graph(), replace(config, micro_batch=0)), MicroBatchPart)
    for found, expected in zip(part(images(3)), in_torch(images(3)), strict=True):
        assert rounding(found, expected) <= ROUNDING  # another engine computes it


@pytest.mark.parametrize(("batch", "num_images"), [("batch", 2), (2, 1)])
def test_arrays_run_in_the_same_micro_batches(batch: str | int, num_images: int) -> None:
    part, given = MicroBatchPart(OnnxRuntimePart(small_graph(batch)), num_images), images(5)
    for tensor, array in zip(part(given), part(as_array(given)), strict=True):
        assert isinstance(array, np.ndarray)
        assert np.array_equal(as_array(tensor), array)


def test_results_of_unknown_shape_are_computed_at_once() -> None:
    config = ExecutionConfig(engine=Engine.ONNXRUNTIME, micro_batch=2)
    assert not isinstance(make_executable(boxes_without_batch(), config), MicroBatchPart)


def test_results_are_written_into_given_memory() -> None:
    part, batch = MicroBatchPart(OnnxRuntimePart(small_graph(batch=1))), images(3)
    assert part.can_run_into
    memory = torch.full((5, CHANNELS, SIDE, SIDE), 7.0)
    means = torch.zeros(3, CHANNELS)
    part.run_into((memory[1:4], means), batch)
    assert torch.equal(memory[1:4], part(batch)[0])
    assert (memory[0] == 7).all()
    assert (memory[4] == 7).all()


def test_results_of_different_lengths_are_padded_with_zeros() -> None:
    graph = boxes_without_batch()
    batch = noise(3).clone()
    batch[1] = -batch[0]
    alone = [run_alone(graph, image[None]) for image in batch]
    lengths = [len(scores) for _, scores in alone]
    assert len(set(lengths)) > 1
    part = MicroBatchPart(OnnxRuntimePart(graph))
    assert not part.can_run_into
    boxes, scores = part(batch)
    assert all(map(np.array_equal, part(as_array(batch)), map(as_array, (boxes, scores))))
    assert boxes.shape == (3, max(lengths), 4)
    assert scores.shape == (3, max(lengths))
    for index, (own_boxes, own_scores) in enumerate(alone):
        assert torch.equal(boxes[index, : lengths[index]], own_boxes)
        assert torch.equal(scores[index, : lengths[index]], own_scores)
        assert not scores[index, lengths[index] :].any()
    assert batch.shape[1:] == IMAGE_SHAPE
