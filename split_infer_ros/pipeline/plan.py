"""All that one batch needs to go through the backbone, made as a whole and replaced as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.slots import Lease
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.pipeline.device import DeviceQueue
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.pipeline.transport import OwnedPool, Transport
from split_infer_ros.split.halves import Halves
from split_infer_ros.split.model import SplitModel


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A model cut somewhere, a pool for what crosses there, and a buffer for what goes in."""

    settings: StageSettings
    halves: Halves
    pool: OwnedPool
    staging: Tensor

    @classmethod
    def make(cls, model: SplitModel, settings: StageSettings, transport: Transport) -> Plan:
        """Cut and allocate.

        Raises:
            ConfigurationError: no such cut, or no such memory; nothing was kept.
        """
        halves = model.halves(settings.split_point)
        pool = transport.make_pool(Layout(halves.cut.tensors, settings.batch_size), settings.ring_slots)
        staging = model.entry.preprocess.staging(settings.batch_size, pinned=model.device.type == "cuda")
        return cls(settings, halves, pool, staging)

    def with_settings(self, settings: StageSettings) -> Plan | None:
        """The same plan under other settings, where these need no other cut and no other memory; else None."""
        mine = replace(self.settings, batch_timeout_s=settings.batch_timeout_s, drop_policy=settings.drop_policy)
        return replace(self, settings=settings) if mine == settings else None

    def compute(self, model: SplitModel, queue: DeviceQueue, lease: Lease, images: Sequence[Pixels]) -> None:
        """Pre-process, run the backbone and leave the features in the slot; returns when they are there."""
        preprocess = model.entry.preprocess
        gathered = preprocess.gather(images, self.staging)
        with torch.inference_mode(), queue.work():
            features = self.halves.backbone(preprocess.normalise(gathered.to(model.device, non_blocking=True)))
            for place, feature in zip(self.pool.views(lease, len(images)), features, strict=True):
                place.copy_(feature, non_blocking=True)
        queue.wait()

    def warm_up(self, model: SplitModel, queue: DeviceQueue) -> None:
        """Run blank batches: the first ones choose kernels and allocate, and nobody should wait for that."""
        lease = self.pool.acquire()
        if lease is None:
            return
        height, width = self.staging.shape[1:3]
        blank = Pixels(torch.zeros((height, width, 3), dtype=torch.uint8), (0, 1, 2))
        for count in {1, self.settings.batch_size}:
            self.compute(model, queue, lease, [blank] * count)
        self.pool.give_up(lease)
