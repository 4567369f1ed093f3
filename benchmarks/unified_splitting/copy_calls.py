"""Counts the copy calls between the pre-processed images and the outputs of the head (§7.3), with torch's profiler.

On a CPU, a copy call is a call of ``aten::copy_``. ``clone``, ``contiguous`` and ``to`` call it whenever they move
data. On a GPU, a copy call is one of CUDA's memory copies or of torch's copy kernels, also inside a recorded graph.

The upload of raw images is not counted, because it belongs to pre-processing. Operators that compute or join results,
such as a sum or ``cat``, are not counted, nor are reorders inside oneDNN or another library.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from split_infer_ros.buffers.host_arrays import Values, as_tensor
from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.pool import FeatureReader
from split_infer_ros.buffers.shared_pool import SharedSlotPool
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.memory_cost.memory_choice import MemoryAdvisor
from split_infer_ros.runtime.device import CPU
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.server.frame import Handle
from split_infer_ros.server.local_transport import LocalTransport
from split_infer_ros.server.plan_making import make_plan
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.transport import Connection
from split_infer_ros.split.model import SplitModel

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler prints two lines for each batch

RUNS_BEFORE = 3  # in the first runs, convolutions are packed, and implementations of the last operators are tried
GPUS_COPIES = ("Memcpy", "direct_copy_kernel")  # parts of the names of copies in a GPU's profile


@dataclass(frozen=True, slots=True)
class CopyCalls:
    """The copy calls of one batch.

    Attributes:
        split: the copy calls of a split run.
        own: the copy calls of the partitions' own operators, if the partitions run without slots between them.
    """

    split: int
    own: int

    @property
    def added(self) -> int:
        """The copy calls that the hand-over from backbone to head adds: ``split - own``."""
        return self.split - self.own


class NoHead:
    """Stands in for a head. It ignores all handles."""

    def submit(self, handle: Handle, reader: FeatureReader) -> None:
        """Does nothing."""

    def prepare(self, model: str, split_point: str, batch_size: int) -> None:
        """Does nothing."""


class SharedSlots:
    """A connection that makes slots in shared memory, as for a head in another process. Nobody reads them."""

    shared = True

    def make_pool(self, layout: Layout, slots: int, place: Place) -> SharedSlotPool:
        """Allocates a pool of slots in shared memory."""
        return SharedSlotPool.allocate(layout, slots, place)

    def prepare_head(self, model: str, split_point: str, batch_size: int) -> None:
        """Does nothing: there is no head."""

    def send(self, handle: Handle, pool: SharedSlotPool) -> int:
        """Returns 0: there is no head."""
        return 0


@torch.inference_mode()
def count_copy_calls(
    model: SplitModel,
    settings: StageSettings,
    pictures: Sequence[Pixels],
    connection: Connection[Any] | None = None,
) -> CopyCalls:
    """Runs a batch through the backbone's plan and the head on this thread, and returns the number of copy calls.

    Args:
        model: the model that is split.
        settings: the split point and the memory policy.
        pictures: the images of one batch.
        connection: makes the slots; None for slots of this process.
    """
    local = LocalTransport(NoHead()).connect(lambda lease, outcome: None, lambda: None)
    plan = make_plan(
        model=model, settings=settings, connection=connection or local, advisor=MemoryAdvisor(model.device)
    )
    backbone, head = model.backbone(settings.split_point), model.head(settings.split_point)
    stream, copies, count = Stream(model.device), Stream(model.device), len(pictures)
    found = CopyCalls(0, 0)
    try:
        for _ in range(RUNS_BEFORE + 1):
            lease = plan.pool.acquire()
            assert lease is not None
            loaded = plan.load(pictures, lease)
            loaded.ready.wait()
            of_backbone = _calls(
                lambda: plan.run(loaded, lease, count=count, stream=stream, copy_stream=copies).wait(),  # noqa: B023
                model.device,
            )
            views = plan.pool.views(lease, count)
            of_head = _calls(lambda: head(*_in_float32(views)), CPU)  # noqa: B023
            own_of_backbone = _calls(lambda: backbone(loaded.images), model.device)  # noqa: B023
            features = [as_tensor(feature).cpu() for feature in backbone(loaded.images)]
            own_of_head = _calls(lambda: head(*_in_float32(features)), CPU)  # noqa: B023
            found = CopyCalls(of_backbone + of_head, own_of_backbone + own_of_head)
            plan.pool.revoke(lease)
    finally:
        plan.close()
    return found


def _in_float32(features: Sequence[Values]) -> list[torch.Tensor]:
    """Returns features in float32, as a head takes them. Features in float32 are not converted."""
    return [each.float() if each.is_floating_point() else each for each in map(as_tensor, features)]


def _calls(work: Callable[[], object], device: torch.device) -> int:
    """Returns how many copy calls ``work`` makes on this thread: on the GPU if ``device`` is one, else on the CPU."""
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as found:
        work()
        if on_gpu:
            torch.cuda.synchronize(device)
    events: list[Any] = list(found.events() or [])
    if not on_gpu:
        return sum(event.name == "aten::copy_" for event in events)
    done = [event.name for event in events if event.device_type == DeviceType.CUDA]
    return sum(any(copy in name for copy in GPUS_COPIES) for name in done)
