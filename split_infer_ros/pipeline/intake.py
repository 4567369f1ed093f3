"""Images on their way into a model: pre-processed where the backbone runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.pipeline.device import DeviceQueue, Mark


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
    """Used by one thread."""

    def load(self, images: Sequence[Pixels]) -> Loaded:
        """Resize and normalise a batch of any sizes."""


class HostIntake:
    """On the CPU: each image is resized into its place of one buffer, which is then normalised as a whole."""

    def __init__(self, preprocess: Preprocess, batch_size: int, dtype: torch.dtype) -> None:
        self._preprocess = preprocess
        self._dtype = dtype
        self._staging = preprocess.staging(batch_size)

    def load(self, images: Sequence[Pixels]) -> Loaded:
        gathered = self._preprocess.gather(images, self._staging)
        return Loaded(self._preprocess.normalise(gathered).to(self._dtype), Mark())


class DeviceIntake:
    """On a GPU: the raw bytes of all images go up as one copy from page-locked memory, and are resized there.

    Two buffers take turns, so that the next batch is gathered while this one still goes up.
    """

    def __init__(self, preprocess: Preprocess, batch_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._preprocess = preprocess
        self._dtype = dtype
        self._device = device
        self._queue = DeviceQueue(device)
        self._buffers = [_Buffer(), _Buffer()]
        self._places = preprocess.staging(batch_size).to(device)

    def load(self, images: Sequence[Pixels]) -> Loaded:
        buffer = self._buffers[0]
        self._buffers.reverse()
        raw = buffer.gather(images)
        with self._queue.work("preprocess"), torch.inference_mode():
            on_device = raw.to(self._device, non_blocking=True)
            buffer.sent = self._queue.mark()
            first = 0
            for shape, rgb, count, begin, end in _runs(images):
                alike = on_device[begin:end].view(count, *shape)
                self._preprocess.fit(alike, rgb, self._places[first : first + count])
                first += count
            normalised = self._preprocess.normalise(self._places[:first]).to(self._dtype)
        return Loaded(normalised, self._queue.mark())


class _Buffer:
    """Page-locked memory that grows with what it has to hold."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self.sent = Mark()

    def gather(self, images: Sequence[Pixels]) -> Tensor:
        """The bytes of all images, one after the other."""
        self.sent.wait()  # until then the GPU reads what lies here
        total = sum(image.data.numel() for image in images)
        if len(self._bytes) < total:
            self._bytes = torch.empty(total, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        begin = 0
        for image in images:
            end = begin + image.data.numel()
            self._bytes[begin:end].view(image.data.shape).copy_(image.data)
            begin = end
        return self._bytes[:total]


def _runs(images: Sequence[Pixels]) -> Iterator[tuple[torch.Size, tuple[int, int, int], int, int, int]]:
    """(shape, rgb, count, first byte, end) of each run of images that are alike."""
    begin = 0
    for (shape, rgb), alike in groupby(images, key=lambda image: (image.data.shape, image.rgb)):
        count = len(list(alike))
        end = begin + count * shape.numel()
        yield shape, rgb, count, begin, end
        begin = end


def make_intake(preprocess: Preprocess, batch_size: int, device: torch.device, dtype: torch.dtype) -> Intake:
    """The intake for a backbone on that device, which computes in ``dtype``."""
    if device.type == "cpu":
        return HostIntake(preprocess, batch_size, dtype)
    return DeviceIntake(preprocess, batch_size, dtype, device)
