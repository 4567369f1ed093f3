"""Pre-processors: they turn a batch of images into a model's input, on the device of its backbone."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from split_infer_ros.buffers.memory import Place
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.pipeline.image_buffer import NUM_IMAGE_BUFFERS, ImageBuffer
from split_infer_ros.runtime.streams import Fence, Stream


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBatch:
    """A pre-processed batch.

    Attributes:
        images: (N, 3, h, w) on the backbone's device.
        ready: the fence from which on ``images`` holds the batch.
    """

    images: Tensor
    ready: Fence


class Preprocessor(Protocol):
    """Pre-processes batches for a backbone. Only a ``HostPreprocessor`` may be used by several threads."""

    @property
    def bytes(self) -> int:
        """The bytes of its buffers, on both sides."""

    def load(self, images: Sequence[Pixels]) -> LoadedBatch:
        """Resizes and normalises a batch of images of any sizes."""


class HostPreprocessor:
    """Pre-processes on the CPU. Each image is resized into its part of a buffer, which is normalised as a whole.

    ``allocate`` creates one.

    Args:
        preprocess: how the model's images are pre-processed.
        dtype: the backbone's precision.
        staging: the buffer of resized images.
        memory_format: the layout of the backbone's input.
    """

    def __init__(
        self,
        preprocess: Preprocess,
        dtype: torch.dtype,
        staging: Tensor,
        memory_format: torch.memory_format = torch.channels_last,
    ) -> None:
        self._preprocess = preprocess
        self._dtype = dtype
        self._memory_format = memory_format
        self._staging = staging
        self._lock = threading.Lock()

    @classmethod
    def allocate(
        cls,
        preprocess: Preprocess,
        *,
        batch_size: int,
        dtype: torch.dtype,
        memory_format: torch.memory_format = torch.channels_last,
    ) -> HostPreprocessor:
        """Creates a pre-processor with room for ``batch_size`` images."""
        return cls(preprocess, dtype, preprocess.staging(batch_size), memory_format)

    @property
    def bytes(self) -> int:
        return self._staging.nbytes

    def load(self, images: Sequence[Pixels]) -> LoadedBatch:
        with self._lock:
            gathered = self._preprocess.gather(images, self._staging)
            return LoadedBatch(self._preprocess.normalise(gathered, self._memory_format).to(self._dtype), Fence())


class DevicePreprocessor:
    """Pre-processes on a GPU. One buffer holds the raw bytes of all images; the GPU gets one copy or reads it in place.

    Two buffers take turns, so that the next batch is gathered while the GPU still needs this one. They grow with the
    images up to a budget. ``allocate`` creates a pre-processor.

    Args:
        preprocess: how the model's images are pre-processed.
        dtype: the backbone's precision.
        stream: on which the GPU pre-processes.
        buffers: the memory for raw bytes; ``NUM_IMAGE_BUFFERS`` of them.
        staging: the buffer of resized images, on the GPU.
        memory_format: the layout of the backbone's input.
    """

    def __init__(
        self,
        preprocess: Preprocess,
        *,
        dtype: torch.dtype,
        stream: Stream,
        buffers: Sequence[ImageBuffer],
        staging: Tensor,
        memory_format: torch.memory_format = torch.channels_last,
    ) -> None:
        self._preprocess = preprocess
        self._dtype = dtype
        self._stream = stream
        self._buffers = list(buffers)
        self._staging = staging
        self._memory_format = memory_format

    @classmethod
    def allocate(
        cls,
        preprocess: Preprocess,
        *,
        batch_size: int,
        dtype: torch.dtype,
        place: Place,
        budget_bytes: float = math.inf,
        memory_format: torch.memory_format = torch.channels_last,
    ) -> DevicePreprocessor:
        """Creates a pre-processor with room for ``batch_size`` resized images.

        Args:
            preprocess: how the model's images are pre-processed.
            batch_size: the most images in a batch.
            dtype: the backbone's precision.
            place: the GPU, and the policy by which it gets raw bytes.
            budget_bytes: memory that raw bytes may take, on both sides.
            memory_format: the layout of the backbone's input.

        Raises:
            ConfigurationError: the memory cannot be allocated.
        """
        stream = Stream(place.device)
        buffers = [ImageBuffer.allocate(place, budget_bytes / NUM_IMAGE_BUFFERS) for _ in range(NUM_IMAGE_BUFFERS)]
        with torch.inference_mode(False):
            staging = preprocess.staging(batch_size).to(place.device)
        return cls(
            preprocess, dtype=dtype, stream=stream, buffers=buffers, staging=staging, memory_format=memory_format
        )

    @property
    def bytes(self) -> int:
        return self._staging.nbytes + sum(buffer.memory.bytes for buffer in self._buffers)

    def load(self, images: Sequence[Pixels]) -> LoadedBatch:
        buffer = self._buffers[0]
        self._buffers.reverse()
        total = buffer.gather(images)
        with self._stream.work("preprocess"), torch.inference_mode():
            on_device = buffer.to_device(total)
            uploaded = self._stream.fence()
            first = 0
            for run in _runs_alike(images):
                alike = on_device[run.begin : run.end].view(run.count, *run.shape)
                self._preprocess.resize_into(self._staging[first : first + run.count], alike, run.rgb)
                first += run.count
            buffer.memory.give_to_host()
            buffer.unused = self._stream.fence()
            buffer.free = uploaded if buffer.memory.needs_copy else buffer.unused
            normalised = self._preprocess.normalise(self._staging[:first], self._memory_format).to(self._dtype)
        return LoadedBatch(normalised, self._stream.fence())


@dataclass(frozen=True, slots=True)
class _Run:
    """Successive images of one shape and channel order, and where their bytes begin and end."""

    shape: torch.Size
    rgb: tuple[int, int, int]
    count: int
    begin: int
    end: int


def _runs_alike(images: Sequence[Pixels]) -> Iterator[_Run]:
    begin = 0
    for (shape, rgb), alike in groupby(images, key=lambda image: (image.data.shape, image.rgb)):
        count = len(list(alike))
        end = begin + count * shape.numel()
        yield _Run(shape=shape, rgb=rgb, count=count, begin=begin, end=end)
        begin = end


def make_preprocessor(
    preprocess: Preprocess,
    *,
    batch_size: int,
    dtype: torch.dtype,
    place: Place,
    budget_bytes: float = math.inf,
    memory_format: torch.memory_format = torch.channels_last,
) -> Preprocessor:
    """Creates the pre-processor for the place where a backbone runs.

    Args:
        preprocess: how the model's images are pre-processed.
        batch_size: the most images in a batch.
        dtype: the backbone's precision.
        place: where the backbone runs, and the policy by which it gets images.
        budget_bytes: memory that the raw bytes of images may take on a GPU, on both sides.
        memory_format: the layout of the backbone's input.

    Raises:
        ConfigurationError: the memory cannot be allocated.
    """
    if place.device.type == "cpu":
        return HostPreprocessor.allocate(preprocess, batch_size=batch_size, dtype=dtype, memory_format=memory_format)
    return DevicePreprocessor.allocate(
        preprocess,
        batch_size=batch_size,
        dtype=dtype,
        place=place,
        budget_bytes=budget_bytes,
        memory_format=memory_format,
    )
