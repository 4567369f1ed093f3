"""Several models' batches as one CUDA graph that forks over streams and joins: one launch for all their kernels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from split_infer_ros.pipeline.device import DeviceQueue
from split_infer_ros.tenancy.costs import Group, group

Model = Callable[[Tensor], Sequence[Tensor]]
WARM_UPS = 3  # the first runs choose kernels and allocate, which must not be recorded


@dataclass(frozen=True, slots=True)
class Recorded:
    """One combination of models and batch sizes.

    Attributes:
        inputs: where each model's images go before a launch.
        outputs: where its results lie after one, until the next.
        launch: runs it.
        bytes: of the device's memory that it keeps.
    """

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Sequence[Tensor]]
    launch: Callable[[], None]
    bytes: int


class Recorder(Protocol):
    """Records a combination from an example of each input."""

    def __call__(self, models: Mapping[str, Model], examples: Mapping[str, Tensor]) -> Recorded: ...


class ForkedGraphs:
    """Records combinations as they are asked for, and keeps the latest used ones within a bound of memory.

    Args:
        forks: in whose queue the graphs are launched.
        most_bytes: that all of them may keep; the one in use is kept even if it is larger.
        record: for tests.
    """

    def __init__(self, forks: Forks, most_bytes: int, record: Recorder | None = None) -> None:
        self._forks = forks
        self._record = record or forks.record
        self._most_bytes = most_bytes
        self._kept: OrderedDict[Group, Recorded] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, combination: Group) -> bool:
        return combination in self._kept

    @property
    def bytes(self) -> int:
        """What is kept."""
        return sum(recorded.bytes for recorded in self._kept.values())

    def run(self, models: Mapping[str, Model], inputs: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, ...]]:
        """One launch for all; results lie in the graph's memory until the same combination runs again.

        Args:
            models: by name.
            inputs: (n, 3, h, w) of each; batches are padded to powers of two, so that few graphs do for all sizes.
        """
        recorded = self.prepare(models, inputs)
        for model, images in inputs.items():
            recorded.inputs[model][: len(images)].copy_(images, non_blocking=True)
        recorded.launch()
        return {
            model: tuple(output[: len(inputs[model])] for output in outputs)
            for model, outputs in recorded.outputs.items()
        }

    def prepare(self, models: Mapping[str, Model], inputs: Mapping[str, Tensor]) -> Recorded:
        """The graph of a combination, recorded if it is not there; to be called for what will be used, beforehand."""
        key = group({model: padded(len(images)) for model, images in inputs.items()})
        if key not in self._kept:
            examples = {model: inputs[model].new_zeros(size, *inputs[model].shape[1:]) for model, size in key}
            recorded = self._record({model: models[model] for model, _ in key}, examples)
            while self._kept and self.bytes + recorded.bytes > self._most_bytes:
                self._forks.wait()  # it may be running
                self._kept.popitem(last=False)
            self._kept[key] = recorded
        self._kept.move_to_end(key)
        return self._kept[key]

    def forget(self, models: Collection[str]) -> None:
        """Models are gone: no combination with them is asked for again."""
        gone = [key for key in self._kept if any(model in models for model, _ in key)]
        if gone:
            self._forks.wait()
        for key in gone:
            del self._kept[key]


def padded(count: int) -> int:
    """The power of two that is no smaller."""
    return 1 << (count - 1).bit_length()


class Forks:
    """Streams of one device, over which models fork out of a queue and join it again.

    Args:
        device: a GPU, where there is anything to fork.
        queue: out of which they fork.
    """

    def __init__(self, device: torch.device, queue: DeviceQueue) -> None:
        self._device = device
        self._queue = queue
        self._streams: list[DeviceQueue] = []

    def wait(self) -> None:
        """Until all that was given to the queue is done."""
        self._queue.mark().wait()

    def run(self, models: Mapping[str, Model], inputs: Mapping[str, Tensor]) -> dict[str, Sequence[Tensor]]:
        """Each model on its batch, kernel by kernel, side by side.

        The memory of results is taken again only by what forks later, and so after what the queue does with them.
        """
        while len(self._streams) < len(models):
            self._streams.append(DeviceQueue(self._device))
        outputs = {}
        begin = self._queue.mark()
        for stream, (name, model) in zip(self._streams, models.items(), strict=False):
            stream.follow(begin)
            with stream.work(name):
                outputs[name] = model(inputs[name])
            self._queue.follow(stream.mark())
        return outputs

    def record(self, models: Mapping[str, Model], examples: Mapping[str, Tensor]) -> Recorded:
        """The same as one graph; what it keeps of memory it keeps to itself."""
        before = torch.cuda.memory_reserved(self._device)
        with torch.inference_mode(), self._queue.work("record"):
            inputs = {
                model: example.contiguous(memory_format=torch.channels_last) for model, example in examples.items()
            }
            for _ in range(WARM_UPS):
                self.run(models, inputs)
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.current_stream(self._device)
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                outputs = self.run(models, inputs)
        self.wait()
        return Recorded(inputs, outputs, graph.replay, max(0, torch.cuda.memory_reserved(self._device) - before))
