"""Raw pixels on their way to the simulated GPU: a buffer is freed only once the GPU has read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from simulated_gpu import GPU, Gpu

from split_infer_ros.buffers.graph_input import GraphInput
from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.memory_pool import MemoryPool
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.images.encodings import ENCODINGS, RGB, Pixels
from split_infer_ros.models.letterbox import Letterbox
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.preprocessing.device_preprocessor import DevicePreprocessor
from split_infer_ros.preprocessing.image_buffer import MIN_BUFFER_BYTES
from split_infer_ros.preprocessing.loaded_batch import BatchForm
from split_infer_ros.runtime.streams import Stream

pytestmark = pytest.mark.usefixtures("plain_operators")

PREPROCESS = Preprocess(4, 4, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
LARGE, LARGER = (
    MIN_BUFFER_BYTES // 300 + 10,
    MIN_BUFFER_BYTES // 300 + 500,
)  # heights of images whose rows have 300 bytes


def grey(value: int, height: int = 4) -> Pixels:
    return Pixels(np.full((height, 100, 3), value, np.uint8), RGB)


def preprocessor_at(place: Place) -> DevicePreprocessor:
    return DevicePreprocessor(PREPROCESS, BatchForm(FLOAT32), batch_size=1, place=place)


def loads(preprocessor: DevicePreprocessor, value: int, height: int = 4) -> torch.Tensor:
    """Loads the first image of a batch of one, without waiting for it."""
    return preprocessor.load([grey(value, height)]).images


@pytest.mark.parametrize("policy", POLICIES)
def test_a_buffer_that_grows_lets_the_gpu_finish_first(policy: Policy, gpu: Gpu) -> None:
    preprocessor = preprocessor_at(Place(policy, GPU))
    for _ in range(2):  # at first constants are made, for which torch waits
        loads(preprocessor, 0)
    loads(preprocessor, 1, LARGE)
    loads(preprocessor, 2)
    last = preprocessor.load([grey(51, LARGER)])
    torch.zeros(LARGE * 300, dtype=torch.uint8, device=GPU)  # what went is handed out again
    last.ready.wait()
    assert last.images.flatten().unique().tolist() == pytest.approx([0.2])


@pytest.mark.parametrize("policy", POLICIES)
def test_the_host_does_not_overwrite_what_the_gpu_reads(policy: Policy, gpu: Gpu) -> None:
    preprocessor = preprocessor_at(Place(policy, GPU))
    for value in (51, 102, 153, 204):
        loaded = preprocessor.load([grey(value)])
        kept = loaded.images
    loaded.ready.wait()
    assert kept.flatten().unique().tolist() == pytest.approx([0.8])


def test_images_of_a_graph_stay_until_it_has_read_them(gpu: Gpu) -> None:
    """A batch is pre-processed while the batch before it is computed from the same memory."""
    preprocessor, stream = preprocessor_at(Place(Policy.DEVICE, GPU)), Stream(GPU)
    example = preprocessor.load([grey(0)])
    example.ready.wait()
    graph_input = GraphInput.like(example.images, MemoryPool(Policy.DEVICE, GPU))
    read = []
    for value in (51, 102, 153, 204):
        loaded = preprocessor.load([grey(value)], into=graph_input)
        with stream.work("graph"), torch.inference_mode():
            stream.wait_for(loaded.ready)
            read.append(loaded.images.clone())
            graph_input.unused = stream.fence()
    stream.fence().wait()
    assert [images.flatten().unique().tolist() for images in read] == [
        pytest.approx([each]) for each in (0.2, 0.4, 0.6, 0.8)
    ]


def test_managed_pixels_belong_to_one_side_at_a_time(gpu: Gpu) -> None:
    gpu.absent.add("cudaDevAttrConcurrentManagedAccess")
    preprocessor = preprocessor_at(Place(Policy.MANAGED, GPU))
    for value in (51, 102, 153):
        loaded = preprocessor.load([grey(value)])
    loaded.ready.wait()


@pytest.mark.parametrize("absent", [[], ["cudaDevAttrConcurrentManagedAccess"]])
def test_batches_of_several_policies_share_a_preprocessor(gpu: Gpu, absent: list[str]) -> None:
    gpu.absent.update(absent)
    base = preprocessor_at(Place(Policy.DEVICE, GPU, switchable=True))
    assert base.bytes == preprocessor_at(Place(Policy.DEVICE, GPU)).bytes
    by_policy = {policy: base.with_policy(policy) for policy in (Policy.DEVICE, Policy.MANAGED, Policy.PINNED)}
    order = [Policy.DEVICE, Policy.MANAGED, Policy.MANAGED, Policy.DEVICE, Policy.DEVICE, Policy.PINNED, Policy.MANAGED]
    for turn, policy in enumerate(order):
        loaded = by_policy[policy].load([grey(5 * turn, LARGE if turn == 4 else 4)])  # without waiting for it
        if turn > 3:
            loaded.ready.wait()
            assert loaded.images.flatten().unique().tolist() == pytest.approx([5 * turn / 255])
    assert by_policy[Policy.MANAGED].bytes == base.bytes


PREPROCESSES = [
    PREPROCESS,
    replace(PREPROCESS, antialias=False),
    replace(PREPROCESS, shorter_side=6),
    replace(PREPROCESS, bgr=True),
    replace(PREPROCESS, letterbox=Letterbox(4, 4)),
    replace(PREPROCESS, letterbox=Letterbox(4, 4, centred=True, colour=(1.0, 2.0, 3.0))),
]


def every_kind_of_frame() -> Iterator[Pixels]:
    for encoding in ("rgb8", "bgr8", "rgba8", "bgra8", "mono8"):
        for height, width in ((4, 4), (6, 6), (4, 8), (8, 4)):
            image = np.zeros((height, width, ENCODINGS[encoding].channels), np.uint8)
            yield Pixels(image, ENCODINGS[encoding].rgb)


@pytest.mark.parametrize("preprocess", PREPROCESSES)
def test_no_kernel_is_loaded_while_frames_flow(gpu: Gpu, preprocess: Preprocess) -> None:
    """A GPU may wait for all of its work when it loads one. Blank images have warmed the pre-processor up."""
    preprocessor = DevicePreprocessor(preprocess, BatchForm(FLOAT32), batch_size=1, place=Place(Policy.DEVICE, GPU))
    preprocessor.load([Pixels.blank()]).ready.wait()
    loaded = set(gpu.kernels)
    for frame in every_kind_of_frame():
        preprocessor.load([frame]).ready.wait()
    assert gpu.kernels == loaded


@pytest.mark.parametrize("letterbox", [None, Letterbox(4, 4), Letterbox(4, 4, centred=True, colour=(1.0, 2.0, 3.0))])
def test_no_constant_is_made_while_frames_flow(
    gpu: Gpu, letterbox: Letterbox | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would lie in the memory of one pre-processor, and making it waits for the GPU."""
    preprocess = replace(PREPROCESS, letterbox=letterbox)
    preprocessor = DevicePreprocessor(preprocess, BatchForm(FLOAT32), batch_size=1, place=Place(Policy.DEVICE, GPU))
    monkeypatch.setattr(torch, "tensor", lambda values, **_: pytest.fail(f"{values} are made"))
    for frame in every_kind_of_frame():
        preprocessor.load([frame]).ready.wait()
