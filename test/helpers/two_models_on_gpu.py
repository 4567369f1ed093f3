"""Runs two models that share a GPU. Each has slots and staging buffers under its own memory policy."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from torch import Tensor
from two_stages import RecordingHead

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.buffers.slots import Lease
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.memory_cost.memory_choice import MemoryAdvisor
from split_infer_ros.runtime.streams import Fence, Stream
from split_infer_ros.server.local_transport import LocalTransport
from split_infer_ros.server.model_instance import ModelInstance
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.model import SplitModel


class Neighbour:
    """A model with its own streams, so that its batches run beside those of another model.

    Attributes:
        plan: the model's plan, with one slot.
    """

    def __init__(self, model: SplitModel, policy: Policy, batch_size: int) -> None:
        self._errors: list[Exception] = []
        self._instance = ModelInstance(
            key=model.entry.name,
            model=model,
            transport=LocalTransport(RecordingHead()),
            advisor=MemoryAdvisor(model.device),
            changed=threading.Condition(),
            on_error=self._errors.append,
            watch=lambda batch: None,
        )
        settings = StageSettings(batch_size=batch_size, pool_slots=1, memory_policy=policy.value)
        self.plan: Plan = self._instance.make_plan(settings)
        self._instance.use(self.plan)
        self._stream, self._copy_stream = Stream(model.device), Stream(model.device)
        self._running: tuple[Lease, Fence, int] | None = None

    def launch(self, images: Sequence[Pixels]) -> None:
        """Gives a batch to the GPU, and does not wait for it."""
        lease = self.plan.pool.acquire()
        assert lease is not None
        loaded = self.plan.load(images, lease)
        fence = self.plan.run(loaded, lease, count=len(images), stream=self._stream, copy_stream=self._copy_stream)
        self._running = lease, fence, len(images)

    def finish(self) -> tuple[Tensor, ...]:
        """Waits for the batch, and returns its features as the CPU reads them."""
        assert self._running is not None
        lease, fence, count = self._running
        fence.wait()
        features = tuple(view.clone() for view in self.plan.pool.slots.views(lease.slot, count))
        self.plan.pool.revoke(lease)
        return features

    def close(self) -> None:
        """Frees the slots and staging buffers. Asserts that there was no error."""
        self._instance.close()
        assert self._errors == []


def run_together(neighbours: Sequence[Neighbour], images: Sequence[Pixels]) -> tuple[list[tuple[Tensor, ...]], float]:
    """Runs a batch of each model at the same time.

    Returns the features of each, and the seconds until the CPU has read all features.
    """
    begin = time.perf_counter()
    for neighbour in neighbours:
        neighbour.launch(images)
    features = [neighbour.finish() for neighbour in neighbours]
    return features, time.perf_counter() - begin
