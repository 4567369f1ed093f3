"""Runs a backbone as CUDA graphs. A graph is recorded once for a slot and a batch size, then launched as a whole.

In a network of a hundred small kernels, launching them takes most of the time. A graph needs only one launch. It reads
and writes the addresses with which it was recorded. Therefore each slot has its own input, into which pre-processing
writes, and its own graphs, with last operators that write into the slot.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from split_infer_ros.buffers.graph_input import GraphInput
from split_infer_ros.buffers.layout import Strides
from split_infer_ros.buffers.memory_pool import MemoryPool
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.engines.compute import Backbone, Store, start_backbone
from split_infer_ros.runtime.captures import WARM_UPS, Capture, GraphPool, capture, without_collector
from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.streams import Stream, current_fence

if TYPE_CHECKING:
    from torch import Tensor

MAX_GRAPHS = 64  # of one backbone

Results = TypeVar("Results")


def graph_sizes(batch_size: int, num_inputs: int = 1) -> list[int]:
    """Returns the batch sizes to record: the powers of two below ``batch_size``, and ``batch_size`` itself.

    A batch of another size runs with the next larger graph. If all inputs together would have more than ``MAX_GRAPHS``
    graphs, every second size is left out, repeatedly if necessary. The largest size stays.

    Args:
        batch_size: the largest batch.
        num_inputs: how many inputs, one for each slot, have graphs of all sizes.
    """
    sizes = [1]
    while 2 * sizes[-1] < batch_size:
        sizes.append(2 * sizes[-1])
    sizes = sorted({*sizes, batch_size})
    while len(sizes) > 1 and len(sizes) * num_inputs > MAX_GRAPHS:
        sizes = sizes[::-2][::-1]
    return sizes


class SizedGraphs(Generic[Results]):
    """Work on the images of one input, recorded for several batch sizes. ``record`` makes such an object.

    Args:
        graph_input: the input from which the graphs read.
        graphs: pairs of a batch size and its graph, in ascending order.

    Attributes:
        input: the input from which the graphs read.
    """

    def __init__(self, graph_input: GraphInput, graphs: Sequence[tuple[int, Capture[Results]]]) -> None:
        self.input = graph_input
        self._sizes = [size for size, _ in graphs]
        self._graphs = [graph for _, graph in graphs]

    @classmethod
    def record(
        cls,
        run: Callable[[Tensor], Results],
        graph_input: GraphInput,
        *,
        sizes: Sequence[int],
        stream: Stream,
        pool: GraphPool | None = None,
        warm_ups: int = WARM_UPS,
    ) -> SizedGraphs[Results]:
        """Records work for each batch size.

        Args:
            run: the work on a batch of images (n, 3, h, w). Its operations must not depend on values on the GPU.
            graph_input: the input from which the graphs read.
            sizes: the batch sizes.
            stream: the stream on which the work is recorded.
            pool: the graphs' memory. Graphs of one pool never run concurrently. None: each graph has its own memory.
            warm_ups: how often the work runs before it is recorded.

        Raises:
            torch.OutOfMemoryError: the device has no room for the graphs.
            CaptureError: the work cannot be recorded.
        """
        graphs = []
        for size in sorted(sizes, reverse=True):  # the largest first, so that the others fit into its memory
            work = partial(run, graph_input.images[:size])
            graphs.append((size, capture(work, stream, pool, warm_ups=warm_ups)))
        return cls(graph_input, graphs[::-1])

    @property
    def bytes(self) -> int:
        """Bytes of the graphs' pool."""
        return self._graphs[0].bytes

    def upload(self) -> None:
        """Launches each graph once in the current stream, because the first launch also uploads the graph."""
        for size in self._sizes:
            self.launch(size)

    def launch(self, count: int) -> Results:
        """Launches the graph for the first ``count`` images of the input in the current stream.

        Returns:
            The results for the smallest recorded size of at least ``count``. Results beyond ``count`` have no meaning.
            All are valid until the next launch.
        """
        graph = self._graphs[bisect_left(self._sizes, count)]
        graph.launch()
        if self.input.images.is_cuda:
            self.input.unused = current_fence(Device.of(self.input.images))
        return graph.results


@dataclass(frozen=True, slots=True, eq=False)
class _Written:
    """The work that remains after the launch of a recorded backbone.

    Attributes:
        strides: strides of the tensors that the graph wrote into the slot; None if ``store`` writes them.
        store: writes the tensors into the slot after each launch; None if the graph writes them.
    """

    strides: tuple[Strides, ...] | None
    store: Store | None


class GraphedBackbone:
    """A recorded backbone. Each slot has an input, which the backbone reads. It writes features into the slot.

    ``record`` makes such an object. Only one thread may use it, on one stream.

    Args:
        slots: the slots into which the graphs write.
        graphs: the graphs of each slot.

    Attributes:
        bytes: bytes of all graphs, without their images and the slots.
    """

    def __init__(self, slots: SlotMemory, graphs: Sequence[SizedGraphs[_Written]]) -> None:
        self._slots = slots
        self.bytes = graphs[0].bytes  # all graphs share one pool
        self._graphs = graphs

    @classmethod
    def record(
        cls, backbone: Backbone, slots: SlotMemory, num_slots: int, example: Tensor, *, memory: MemoryPool | None = None
    ) -> GraphedBackbone:
        """Records a backbone for each slot and each of ``graph_sizes``.

        If CPU and GPU must take turns at a slot's memory, the backbone's last operators are not recorded. They are
        launched after the graph, because taking turns cannot be recorded.

        Args:
            backbone: maps images (n, 3, h, w) to a tuple of features (n, ...). Its operations must not depend on values
                on the GPU.
            slots: the slots for the features. No batch may use them during the recording.
            num_slots: number of slots.
            example: images (batch_size, 3, h, w) on the device, in the backbone's precision.
            memory: the memory of the graphs' images. The graphs get memory of the same policy. None: torch's common
                memory.

        Raises:
            torch.OutOfMemoryError: the device has no room for the graphs.
            CaptureError: the backbone cannot be recorded.
        """
        device = Device.of(example)
        memory = memory or MemoryPool(Policy.DEVICE, device)
        stream = Stream(device)  # a separate one, because frames may flow on the backbone's stream
        pool = memory.graph_pool()  # shared by all graphs, because only one of them runs at a time

        def run(slot: int, images: Tensor) -> _Written:
            store = start_backbone(backbone, images, batched=True)
            if slots.has_exclusive_sides:
                return _Written(None, store)
            store(slots, slot)
            return _Written(slots.strides(slot), None)

        with without_collector():
            graphs = [
                SizedGraphs.record(
                    partial(run, slot),
                    GraphInput.like(example, memory),
                    sizes=graph_sizes(len(example), num_slots),
                    stream=stream,
                    pool=pool,
                    warm_ups=0 if slot else WARM_UPS,  # kernels are chosen and prepared once for all slots
                )
                for slot in range(num_slots)
            ]
        with stream.work("upload"):
            for each in graphs:
                each.upload()
        stream.fence().wait()
        return cls(slots, graphs)

    def input_of(self, slot: int) -> GraphInput:
        """Returns the input into which pre-processing writes the images of the slot's batch."""
        return self._graphs[slot].input

    def run_into_slot(self, slot: int, count: int) -> None:
        """Runs the backbone on the first ``count`` images of the slot's input in the current stream."""
        with self._slots.lent_to_device(slot):
            written = self._graphs[slot].launch(count)
            if written.store is not None:
                written.store(self._slots, slot)
            else:
                self._slots.set_strides(slot, written.strides)
