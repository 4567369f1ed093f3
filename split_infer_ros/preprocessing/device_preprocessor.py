"""Turns images into a model's input on a GPU. The GPU gets the images' raw bytes."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from split_infer_ros.buffers.graph_input import GraphInput
from split_infer_ros.buffers.host_arrays import FLOAT32, torch_dtype
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.memory_pool import MemoryPool
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.images.encodings import BGR, GREY, RGB, Pixels
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.preprocessing.device_pixels import make_staging, normalise, resize_into
from split_infer_ros.preprocessing.image_buffer import NUM_IMAGE_BUFFERS, ImageBuffer, to_device
from split_infer_ros.preprocessing.loaded_batch import BatchForm, LoadedBatch
from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.streams import Fence, Stream


class DevicePreprocessor:
    """Pre-processes batches on a GPU.

    A buffer holds the raw bytes of all images of a batch. The memory policy decides whether the GPU gets one copy of
    all bytes, or reads the buffer in place. Two buffers take turns. One can be filled with the next batch while the GPU
    still needs the other. The buffers grow with the images up to a budget.

    Args:
        preprocess: how the model's images are pre-processed.
        form: the form in which the backbone takes images.
        batch_size: the most images in a batch.
        place: the GPU, and the memory policy by which it gets raw bytes.
        budget_bytes: memory that raw bytes may take, on host and GPU together.
        pool: the memory for resized and normalised images. None means torch's common memory.

    Raises:
        ConfigurationError: the memory cannot be allocated.
    """

    def __init__(
        self,
        preprocess: Preprocess,
        form: BatchForm,
        *,
        batch_size: int,
        place: Place,
        budget_bytes: float = math.inf,
        pool: MemoryPool | None = None,
    ) -> None:
        self._preprocess, self._form = preprocess, form
        self._pool = pool or MemoryPool(Policy.DEVICE, place.device)
        self._policy: Policy | None = None  # of the raw bytes; None is the place's own
        _make_constants(preprocess, place.device)
        self._buffers = [ImageBuffer(place, budget_bytes / NUM_IMAGE_BUFFERS) for _ in range(NUM_IMAGE_BUFFERS)]
        with torch.inference_mode(False), self._pool.allocating():
            self._staging = make_staging(preprocess, batch_size, place.device)  # the resized images
        self._stream = Stream(place.device)

    @property
    def bytes(self) -> int:
        return self._staging.nbytes + sum(buffer.memory.bytes for buffer in self._buffers)

    def with_policy(self, policy: Policy) -> DevicePreprocessor:
        other = copy.copy(self)  # the list of buffers is shared: they take turns, whichever of the two uses them
        other._policy = policy
        return other

    def load(self, images: Sequence[Pixels], into: GraphInput | None = None) -> LoadedBatch:
        """Resizes and normalises a batch of images; see ``Preprocessor.load``.

        Raises:
            ConfigurationError: the images' bytes do not fit into the budget.
            OutOfMemory: a buffer cannot grow, because the memory cannot be allocated.
        """
        buffer = self._buffers[0]
        self._buffers.reverse()
        memory, total = buffer.gather(images, self._policy)
        with self._stream.work("preprocess"), torch.inference_mode(), self._pool.allocating():
            uploaded, first = Fence(), 0
            try:
                on_device = to_device(memory, total)
                uploaded = self._stream.fence()
                for run in _runs_alike(images):
                    alike = on_device[run.begin : run.end].view(run.count, *run.shape)
                    resize_into(self._preprocess, self._staging[first : first + run.count], alike, run.rgb)
                    first += run.count
            finally:  # the buffer is used again, also if this batch failed
                memory.give_to_host()
                buffer.unused = self._stream.fence()
                buffer.free = uploaded if memory.needs_copy else buffer.unused
            if into is not None:
                self._stream.wait_for(into.unused)
            normalised = self._normalised(self._staging[:first], into)
        return LoadedBatch(normalised, self._stream.fence())

    def _normalised(self, gathered: Tensor, into: GraphInput | None) -> Tensor:
        """Returns resized images as the model's input: in the memory of ``into``, or else in new memory."""
        channels_last, dtype = self._form.channels_last, self._form.dtype
        if into is None:
            return normalise(self._preprocess, gathered, channels_last).to(torch_dtype(dtype))
        images = into.images[: len(gathered)]
        if dtype != FLOAT32:
            return images.copy_(normalise(self._preprocess, gathered, channels_last))
        return normalise(self._preprocess, gathered, channels_last, out=images)


@torch.inference_mode()
def _make_constants(preprocess: Preprocess, device: Device) -> None:
    """Makes the constants that all pre-processors of this process share. They must not lie in one pre-processor's pool.

    This also loads the kernels for each order of channels. CUDA loads a kernel at its first launch, and may then wait
    for all work of the GPU.
    """
    resized = make_staging(preprocess, 1, device)
    as_it_is = preprocess.shorter_side or preprocess.height, preprocess.shorter_side or preprocess.width
    for order in (RGB, BGR, GREY):
        for height, width in ((2, 2), (2, 4), as_it_is):  # one of the first two leaves a border in a letterbox
            image = torch.zeros((1, height, width, 4), dtype=torch.uint8, device=device)  # 4: each order is an index
            resize_into(preprocess, resized, image, order)
    normalise(preprocess, resized)


@dataclass(frozen=True, slots=True)
class _Run:
    """Successive images of one shape and channel order. Their bytes lie from ``begin`` to ``end`` in the buffer."""

    shape: tuple[int, ...]
    rgb: tuple[int, int, int]
    count: int
    begin: int
    end: int


def _runs_alike(images: Sequence[Pixels]) -> Iterator[_Run]:
    begin = 0
    for (shape, rgb), alike in groupby(images, key=lambda image: (image.data.shape, image.rgb)):
        count = len(list(alike))
        end = begin + count * math.prod(shape)
        yield _Run(shape=shape, rgb=rgb, count=count, begin=begin, end=end)
        begin = end
