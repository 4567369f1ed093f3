"""Images on their way into a model: pre-processed where the backbone runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from split_infer_ros.buffers.memory import Place, allocate
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.pipeline.device import DeviceQueue, Mark

LEAST_BYTES = 3 * 640 * 480


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A batch as the model takes it.

    Attributes:
        images: (N, 3, h, w) on the backbone's device.
        ready: from when on it holds them.
    """

    images: Tensor
    ready: Mark


class Intake(Protocol):
    """Used by one thread; that of the CPU by several."""

    @property
    def bytes(self) -> int:
        """What its buffers take, on both sides."""

    def load(self, images: Sequence[Pixels]) -> Loaded:
        """Resize and normalise a batch of any sizes."""


class HostIntake:
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
            return Loaded(self._preprocess.normalise(gathered).to(self._dtype), Mark())


class DeviceIntake:
    """On a GPU: the raw bytes of all images lie in one buffer, which the GPU gets as one copy or reads as it is.

    Two buffers take turns, so that the next batch is gathered while the GPU still needs this one.
    """

    def __init__(self, preprocess: Preprocess, batch_size: int, dtype: torch.dtype, place: Place) -> None:
        self._preprocess = preprocess
        self._dtype = dtype
        self._queue = DeviceQueue(place.device)
        self._buffers = [_Buffer(place), _Buffer(place)]
        self._places = preprocess.staging(batch_size).to(place.device)

    @property
    def bytes(self) -> int:
        return self._places.nbytes + sum(buffer.memory.bytes for buffer in self._buffers)

    def load(self, images: Sequence[Pixels]) -> Loaded:
        buffer = self._buffers[0]
        self._buffers.reverse()
        total = buffer.gather(images)
        with self._queue.work("preprocess"), torch.inference_mode():
            on_device = buffer.to_device(total)
            if not buffer.memory.is_one:
                buffer.free = self._queue.mark()
            first = 0
            for shape, rgb, count, begin, end in _runs(images):
                alike = on_device[begin:end].view(count, *shape)
                self._preprocess.fit(alike, rgb, self._places[first : first + count])
                first += count
            if buffer.memory.is_one:
                buffer.memory.give_to_host()
                buffer.free = self._queue.mark()
            normalised = self._preprocess.normalise(self._places[:first]).to(self._dtype)
        return Loaded(normalised, self._queue.mark())


class _Buffer:
    """Memory that grows with what it has to hold.

    Attributes:
        memory: what there is now.
        free: from when on the CPU may write there again.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self.memory = allocate(place.policy, LEAST_BYTES, place.device)
        self.free = Mark()

    def gather(self, images: Sequence[Pixels]) -> int:
        """Lay the bytes of all images one after the other; returns how many."""
        self.free.wait()
        total = sum(image.data.numel() for image in images)
        if self.memory.host.numel() < total:
            self.memory = allocate(self._place.policy, total, self._place.device)
        begin = 0
        for image in images:
            end = begin + image.data.numel()
            self.memory.host[begin:end].view(image.data.shape).copy_(image.data)
            begin = end
        return total

    def to_device(self, total: int) -> Tensor:
        """From here on in the current stream's order, these bytes on the GPU."""
        self.memory.give_to_device()
        if not self.memory.is_one:
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


def make_intake(preprocess: Preprocess, batch_size: int, dtype: torch.dtype, place: Place) -> Intake:
    """The intake for a backbone that computes in ``dtype``, there, from such memory."""
    if place.device.type == "cpu":
        return HostIntake(preprocess, batch_size, dtype)
    return DeviceIntake(preprocess, batch_size, dtype, place)
