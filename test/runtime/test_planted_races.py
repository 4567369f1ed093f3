"""A race that is planted in any kind of shared buffer is found there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from all_layers_on_gpu import odd_on_gpu, streamed
from brightness_pipeline import SETTINGS, BrightRun
from simulated_gpu import GPU, Gpu, simulated

from split_infer_ros.buffers.graph_input import GraphInput
from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.buffers.layout import Layout, TensorSpec
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.engines.cuda.cuda_graphs import GraphedBackbone
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.preprocessing.device_preprocessor import DevicePreprocessor
from split_infer_ros.preprocessing.image_buffer import ImageBuffer
from split_infer_ros.preprocessing.loaded_batch import BatchForm
from split_infer_ros.runtime.streams import Fence, Stream
from split_infer_ros.weight_streaming.residency import Residency

Plant = Callable[[pytest.MonkeyPatch], None]


def no_order_between_streams(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Stream, "wait_for", lambda stream, fence: None)


def no_wait_for_results(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fence, "wait", lambda fence: None)


def raw_pixels_are_always_free(patch: pytest.MonkeyPatch) -> None:
    for name in ("free", "unused"):
        patch.setattr(ImageBuffer, name, property(lambda buffer: Fence(), lambda buffer, fence: None), raising=False)


@contextmanager
def planted() -> Iterator[Gpu]:
    """Returns a simulated GPU whose races the test itself checks."""
    gpu = Gpu()
    with suppress(AssertionError), simulated(gpu):
        yield gpu


def run_pipeline(policy: str, graphs: bool) -> None:
    settings = replace(SETTINGS, memory_policy=policy, cuda_graphs=graphs, pool_slots=4)
    with suppress(AssertionError, RuntimeError, ValueError), BrightRun(settings) as run:
        run.feed(24)
        run.check()


@pytest.mark.parametrize(
    ("plant", "policy", "graphs", "place"),
    [
        pytest.param(no_order_between_streams, "device", False, "in fetch", id="slot on the device"),
        pytest.param(no_wait_for_results, "device", False, "in fetch", id="staging of a slot"),
        pytest.param(no_wait_for_results, "pinned", False, "in _conv2d", id="slot that both sides see"),
        pytest.param(no_order_between_streams, "device", True, "in normalise", id="input of a graph"),
        pytest.param(no_order_between_streams, "pinned", False, "in normalise", id="input of a backbone"),
    ],
)
def test_a_race_in_a_pipeline_is_found(
    plant: Plant, policy: str, graphs: bool, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with planted() as gpu:
        run_pipeline(policy, graphs)
    assert place in gpu.findings()


@pytest.mark.parametrize(("policy", "place"), [(Policy.DEVICE, "in to_device"), (Policy.PINNED, "in gather")])
def test_a_race_for_raw_pixels_is_found(policy: Policy, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a pipeline, because a fast head would order each batch after the one before."""
    raw_pixels_are_always_free(monkeypatch)
    with planted() as gpu:
        preprocessor = DevicePreprocessor(Preprocess(4, 4), BatchForm(FLOAT32), batch_size=1, place=Place(policy, GPU))
        for _ in range(4):
            preprocessor.load([Pixels(np.zeros((4, 4, 3), np.uint8), (0, 1, 2))])
    assert place in gpu.findings()


def doubling_graph() -> tuple[SlotMemory, GraphedBackbone]:
    """Returns a slot, and the recorded backbone that doubles a picture of 4x4 into it."""
    layout = Layout([TensorSpec("doubled", (3, 4, 4), FLOAT32)], 1)
    slots = SlotMemory.allocate(layout, 1, Place(Policy.DEVICE, GPU))
    example = torch.ones(1, 3, 4, 4, device=GPU).contiguous(memory_format=torch.channels_last)
    return slots, GraphedBackbone.record(lambda batch: (batch * 2,), slots, 1, example)


@pytest.mark.parametrize("planting", [False, True])
def test_a_race_for_the_input_of_a_graph_is_found(planting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a pipeline, because there a slot comes back only once its batch was computed."""
    if planting:
        monkeypatch.setattr(GraphInput, "unused", property(lambda self: Fence(), lambda self, fence: None))
    with planted() as gpu, torch.inference_mode():
        _, graphed = doubling_graph()
        preprocessor = DevicePreprocessor(
            Preprocess(4, 4), BatchForm(FLOAT32), batch_size=1, place=Place(Policy.DEVICE, GPU)
        )
        stream = Stream(GPU)
        for _ in range(4):
            loaded = preprocessor.load([Pixels(np.zeros((4, 4, 3), np.uint8), (0, 1, 2))], graphed.input_of(0))
            stream.wait_for(loaded.ready)
            with stream.work("backbone"):
                graphed.run_into_slot(0, 1)
    assert ("in normalise" in gpu.findings()) == planting


def test_a_race_for_what_a_graph_writes_is_found() -> None:
    with planted() as gpu, torch.inference_mode():
        slots, graphed = doubling_graph()
        graphed.run_into_slot(0, 1)
        with Stream(GPU).work("read"):
            slots.fetch(0, 1)
        graphed.run_into_slot(0, 1)
    assert "in launch" in gpu.findings()


@pytest.mark.parametrize(
    ("residency", "place"),
    [(Residency.TWO_STAGE, "in fetch"), (Residency.ASYNCHRONOUS, "in copy"), (Residency.SYNCHRONOUS, "in copy")],
)
def test_a_race_in_a_ring_of_weights_is_found(
    residency: Residency, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with planted() as gpu, torch.inference_mode():
        partition, stream = streamed(odd_on_gpu(), residency), Stream(GPU)
        images = torch.rand(2, 3, 16, 16).to(GPU)
        monkeypatch.setattr(Fence, "wait", lambda fence: None)
        with stream.work("backbone"):
            for _ in range(3):
                partition(images)
        monkeypatch.undo()
        partition.close()
    assert place in gpu.findings()
