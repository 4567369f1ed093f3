"""Runs a backbone stage and a head stage together. The score of a result is the brightness of its frame."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable

import numpy as np
import torch
from brightness_models import LONG_S
from tenant_server import until
from torch import Tensor, nn

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.pool import FeatureReader, SlotPool, find_pool
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import ModelEntry, Weights
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.server.backbone_stage import BackboneStage
from split_infer_ros.server.frame import Handle, Origin
from split_infer_ros.server.head_stage import HeadStage
from split_infer_ros.server.improving.rivals import Rivals
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.transport import Released
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_network import TorchNetwork


class Brightness(nn.Module):
    """Maps images to the mean of red over the image, (N, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Conv2d(3, 3, 1), nn.AvgPool2d(4), nn.Flatten())
        nn.init.dirac_(self.parts[0].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.parts[0].bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        return self.parts(images)[:, :1]  # type: ignore[no-any-return]


def decode(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
    return [
        Detections(torch.tensor([[0.0, 0.0, 4.0, 4.0]]), score.clone(), torch.zeros(1, dtype=torch.int64))
        for score in outputs[0]
    ]


ENTRY = ModelEntry(
    name="brightness",
    summary="",
    build=Brightness,
    weights=Weights(),
    preprocess=Preprocess(4, 4, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
    labels=("bright",),
    default_split_point="parts.0",
    decode=decode,
)


@functools.cache
def brightness() -> SplitModel:
    return SplitModel(TorchNetwork(ENTRY, Brightness()))


def frame(brightness: int, height: int = 4, width: int = 4, source: str = "a") -> tuple[Pixels, Origin]:
    pixels = Pixels(np.full((height, width, 3), brightness, np.uint8), (0, 1, 2))
    return pixels, Origin(brightness, source, height, width)


class RecordingHead:
    """Stands in for a head. It only records what it is told.

    Attributes:
        sent: the submitted handles, each with the reader of its slot.
        prepared: the models, split points and batch sizes to prepare.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[Handle, FeatureReader]] = []
        self.prepared: list[tuple[str, str, int]] = []

    def submit(self, handle: Handle, reader: FeatureReader) -> None:
        self.sent.append((handle, reader))

    def prepare(self, model: str, split_point: str, batch_size: int) -> None:
        self.prepared.append((model, split_point, batch_size))


class FakeTransport:
    """A transport within the process. It calls ``publish`` with each handle.

    Args:
        publish: sends a handle to heads, and returns the number of heads.
        lease_s: after how many seconds a lease ends.
    """

    shared = False

    def __init__(self, publish: Callable[[Handle], int], lease_s: float = LONG_S) -> None:
        self.publish = publish
        self._lease_s = lease_s

    def connect(self, released: Released, collect: Callable[[], None]) -> FakeTransport:
        self._released = released
        self.is_connected = True
        return self

    def make_pool(self, layout: Layout, slots: int, place: Place) -> SlotPool:
        return SlotPool.allocate(layout, slots, place, lease_s=self._lease_s, released=self._released)

    def prepare_head(self, model: str, split_point: str, batch_size: int) -> None:
        pass

    def send(self, handle: Handle, pool: SlotPool) -> int:
        return self.publish(handle)

    def disconnect(self) -> None:
        self.is_connected = False


class Stages:
    """Both stages, and a gate: while it is not set, the head waits before it delivers a result.

    Leases are long, so that none ends if a busy machine holds up the head. Tests about leases pass shorter ones.
    """

    def __init__(
        self,
        settings: StageSettings,
        lease_s: float = LONG_S,
        rivals: Rivals | None = None,
        model: SplitModel | None = None,
    ) -> None:
        model = model or brightness()
        self.errors: list[Exception] = []
        self.said: list[str] = []
        self.delivered: list[tuple[Origin, Detections]] = []
        self.handles: list[Handle] = []
        self.gate = threading.Event()
        self.gate.set()
        self.head = HeadStage.open(
            model, Limits(), deliver=lambda *found: self.deliver(*found), on_error=self.errors.append
        )
        self.transport = FakeTransport(self.publish, lease_s)
        self.backbone = BackboneStage(
            model,
            settings=settings,
            transport=self.transport,
            on_error=self.errors.append,
            rivals=rivals,
            say=self.said.append,
        )
        self.head.start()
        self.backbone.start()

    def publish(self, handle: Handle) -> int:
        self.handles.append(handle)
        self.submit_to_head(handle)
        return 1

    def submit_to_head(self, handle: Handle) -> None:
        self.head.submit(handle, find_pool(handle.lease))

    def keep_unread(self) -> list[Handle]:
        """From now on, does not send handles to the head. Returns the list to which they are added instead."""
        unread: list[Handle] = []

        def publish(handle: Handle) -> int:
            unread.append(handle)
            return 1

        self.transport.publish = publish
        return unread

    def deliver(self, handle: Handle, index: int, detections: Detections) -> None:
        assert self.gate.wait(LONG_S)
        self.delivered.append((handle.origins[index], detections))

    def send(self, *values: int, source: str = "a") -> None:
        for value in values:
            self.backbone.intake.submit(*frame(value, source=source), time.monotonic())

    def settle(self) -> None:
        until(lambda: not self.backbone.ledger.counts().in_flight)

    def check_results(self) -> None:
        """Asserts that all frames are accounted for, and that each result tells the brightness of its own frame."""
        counts = self.backbone.ledger.counts()
        assert counts.balanced
        assert counts.published == len(self.delivered)
        for origin, detections in self.delivered:
            assert round(detections.scores.item() * 255) == origin.header, "features of another frame"

    def close(self) -> None:
        self.gate.set()
        self.backbone.stop(LONG_S)
        self.head.stop()


Start = Callable[..., Stages]
