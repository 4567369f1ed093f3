"""A part whose graph takes one image at a time, run on batches."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx_nets import IMAGE_SHAPE, boxes_without_batch
from onnx_nets import images as noise
from onnx_nets import run as run_alone
from small_graphs import CHANNELS, SIDE, images, small_graph

from split_infer_ros.engines.onnxruntime_part import OnnxRuntimePart
from split_infer_ros.engines.per_image import PerImagePart


def test_images_run_one_by_one() -> None:
    alone = OnnxRuntimePart(small_graph(batch=1))
    part, batch = PerImagePart(alone), images(3)
    features, means = part(batch)
    assert features.shape == (3, CHANNELS, SIDE, SIDE)
    assert not torch.equal(features[0], features[1])
    for index in range(3):  # the same session on the same memory: equal to the bit
        for found, expected in zip((features, means), alone(batch[index : index + 1]), strict=True):
            assert torch.equal(found[index : index + 1], expected)


def test_results_are_written_into_given_memory() -> None:
    part, batch = PerImagePart(OnnxRuntimePart(small_graph(batch=1))), images(3)
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
    part = PerImagePart(OnnxRuntimePart(graph))
    assert not part.can_run_into
    boxes, scores = part(batch)
    assert boxes.shape == (3, max(lengths), 4)
    assert scores.shape == (3, max(lengths))
    for index, (own_boxes, own_scores) in enumerate(alone):
        assert torch.equal(boxes[index, : lengths[index]], own_boxes)
        assert torch.equal(scores[index, : lengths[index]], own_scores)
        assert not scores[index, lengths[index] :].any()
    assert batch.shape[1:] == IMAGE_SHAPE
