"""Images on their way into a model: pre-processed where the backbone runs."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from split_infer_ros.buffers.memory import Place, allocate
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.runtime.streams import Fence, Stream

MB = 1e6
LEAST_BYTES = 3 * 640 * 480
BUFFERS = 2  # for the bytes of images, which take turns


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A batch as the model takes it.

    Attributes:
        images: (N, 3, h, w) on the backbone's device.
        ready: from when on it holds them.
    """

    images: Tensor
    ready: Fence


class Preprocessor(Protocol):
    """Used by one thread; that of the CPU by several."""

    @property
    def bytes(self) -> int:
        """What its buffers take, on both sides."""

    def load(self, images: Sequence[Pixels]) -> Loaded:
        """Resize and normalise a batch of any sizes."""


class HostPreprocessor:
    """On the CPU: each image is resized into its place of one buffer, which is then normalised as a whole."""

    def __init__(self, preprocess: Preprocess, batch_size: int, dtype: torch.dtype) -> None:
        self._preprocess = preprocess
        self._dtype = dtype
        self._staging = preprocess.staging(batch_size)
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        return self._staging.nbytes

    def load(self, images: Sequence[Pixels]) -> Loaded:
        with self._lock:
            gathered = self._preprocess.gather(images, self._staging)
            return Loaded(self._preprocess.normalise(gathered).to(self._dtype), Fence())


class DevicePreprocessor:
    """On a GPU: the raw bytes of all images lie in one buffer, which the GPU gets as one copy or reads as it is.

    Two buffers take turns, so that the next batch is gathered while the GPU still needs this one. They grow with the
    images, up to ``budget_bytes`` in all.
    """

    def __init__(
        self, preprocess: Preprocess, batch_size: int, dtype: torch.dtype, place: Place, budget_bytes: float = math.inf
    ) -> None:
        self._preprocess = preprocess
        self._dtype = dtype
        self._stream = Stream(place.device)
        self._buffers = [_Buffer(place, budget_bytes / BUFFERS) for _ in range(BUFFERS)]
        with torch.inference_mode(False):
            self._places = preprocess.staging(batch_size).to(place.device)

    @property
    def bytes(self) -> int:
        return self._places.nbytes + sum(buffer.memory.bytes for buffer in self._buffers)

    def load(self, images: Sequence[Pixels]) -> Loaded:
        buffer = self._buffers[0]
        self._buffers.reverse()
        total = buffer.gather(images)
        with self._stream.work("preprocess"), torch.inference_mode():
            on_device = buffer.to_device(total)
            uploaded = self._stream.fence()
            first = 0
            for shape, rgb, count, begin, end in _runs(images):
                alike = on_device[begin:end].view(count, *shape)
                self._preprocess.resize_into(self._places[first : first + count], alike, rgb)
                first += count
            buffer.memory.give_to_host()
            buffer.unused = self._stream.fence()
            buffer.free = uploaded if buffer.memory.needs_copy else buffer.unused
            normalised = self._preprocess.normalise(self._places[:first]).to(self._dtype)
        return Loaded(normalised, self._stream.fence())


class _Buffer:
    """Memory that grows with what it has to hold.

    Args:
        place: of the memory.
        budget_bytes: that it may take, on both sides.

    Attributes:
        memory: what there is now.
        free: from here on the CPU may write there again.
        unused: from here on the GPU needs it no more, on either side.
    """

    def __init__(self, place: Place, budget_bytes: float) -> None:
        self._place = place
        self._budget_bytes = budget_bytes
        self.memory = allocate(place.policy, LEAST_BYTES, place.device)
        self.free = self.unused = Fence()

    def gather(self, images: Sequence[Pixels]) -> int:
        """Lays the bytes of all images one after the other; returns how many.

        Raises:
            ConfigurationError: they do not fit into the budget.
            OutOfMemory: there is not so much memory.
        """
        self.free.wait()
        total = sum(image.data.numel() for image in images)
        if self.memory.host.numel() < total:
            self._grow(total, len(images))
        begin = 0
        for image in images:
            end = begin + image.data.numel()
            self.memory.host[begin:end].view(image.data.shape).copy_(image.data)
            begin = end
        return total

    def _grow(self, total: int, images: int) -> None:
        needed = raw_bytes(self._place.policy, total)
        if needed > self._budget_bytes:
            raise ConfigurationError(
                f"The bytes of {images} images of this size take {needed * BUFFERS / MB:,.1f} MB, and the "
                f"memory_budget_mb has {self._budget_bytes * BUFFERS / MB:,.1f} left for them: take a smaller "
                "batch_size, smaller images or a larger budget."
            )
        self.unused.wait()  # the GPU may still be reading what goes now
        self.memory = allocate(self._place.policy, total, self._place.device)

    def to_device(self, total: int) -> Tensor:
        """From here on in the current stream's order, these bytes on the GPU."""
        self.memory.give_to_device()
        if self.memory.needs_copy:
            self.memory.device[:total].copy_(self.memory.host[:total], non_blocking=True)
        return self.memory.device[:total]


def _runs(images: Sequence[Pixels]) -> Iterator[tuple[torch.Size, tuple[int, int, int], int, int, int]]:
    """(shape, rgb, count, first byte, end) of each run of images that are alike."""
    begin = 0
    for (shape, rgb), alike in groupby(images, key=lambda image: (image.data.shape, image.rgb)):
        count = len(list(alike))
        end = begin + count * shape.numel()
        yield shape, rgb, count, begin, end
        begin = end


def raw_bytes(policy: Policy, nbytes: int = LEAST_BYTES) -> int:
    """What a buffer for so many bytes of images takes, on both sides."""
    return policy.footprint_bytes(nbytes)


def make_preprocessor(
    preprocess: Preprocess, batch_size: int, dtype: torch.dtype, place: Place, budget_bytes: float = math.inf
) -> Preprocessor:
    """The intake for a backbone that computes in ``dtype``, there, from such memory.

    Args:
        preprocess: the model's.
        batch_size: how many images a batch has at most.
        dtype: in which the backbone takes them.
        place: where the backbone runs, and by which policy it gets the images.
        budget_bytes: that the bytes of images may take on a GPU, on both sides.

    Raises:
        ConfigurationError: there is no such memory.
    """
    if place.device.type == "cpu":
        return HostPreprocessor(preprocess, batch_size, dtype)
    return DevicePreprocessor(preprocess, batch_size, dtype, place, budget_bytes)
