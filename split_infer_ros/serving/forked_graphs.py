"""Several models' batches as one CUDA graph that forks over streams and joins: one launch for all their kernels."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from split_infer_ros.runtime.captures import CaptureError, capture
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.serving.execution_costs import Group
from split_infer_ros.serving.graph_policy import as_recorded, graphs_for, make_way

Model = Callable[[Tensor], Sequence[Tensor]]

_LOG = logging.getLogger(__name__)


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
    """Combinations that were recorded, as many as a bound of memory allows; ``graph_choice`` says which these are.

    Args:
        forks: in whose stream the graphs are launched.
        most_bytes: that all of them may keep.
        record: for tests.
    """

    def __init__(self, forks: Forks, most_bytes: int, record: Recorder | None = None) -> None:
        self._forks = forks
        self._record = record or forks.record
        self._most_bytes = most_bytes
        self._kept: OrderedDict[Group, Recorded] = OrderedDict()  # the least lately used first
        self._missed: Counter[Group] = Counter()
        self._refused: set[Group] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, combination: Group) -> bool:
        return combination in self._kept

    @property
    def bytes(self) -> int:
        """What is kept."""
        return sum(recorded.bytes for recorded in self._kept.values())

    @property
    def wanted(self) -> Group | None:
        """Of the combinations that ran and are not recorded, the one that did so most often."""
        return self._missed.most_common(1)[0][0] if self._missed else None

    def has_room(self, combination: Group) -> bool:
        """Whether it would be kept beside all others: it should take what its models take one by one."""
        alone = [self._kept[part,].bytes for part in combination if (part,) in self._kept]
        return self.bytes + sum(alone) <= self._most_bytes

    def run(self, models: Mapping[str, Model], inputs: Mapping[str, Tensor]) -> dict[str, Sequence[Tensor]]:
        """One launch for all, if that was recorded; nothing is recorded now.

        Results lie in a graph's memory until these models run again.

        Args:
            models: by name.
            inputs: (n, 3, h, w) of each; batches are padded to powers of two.
        """
        combination = as_recorded({model: len(images) for model, images in inputs.items()})
        graphs = graphs_for(combination, self._kept)
        for found in graphs:
            self._kept.move_to_end(found)
        if combination in graphs:
            return _replay(self._kept[combination], inputs)
        if combination not in self._refused:
            self._missed[combination] += 1
        own = {found[0][0]: _alone(self._kept[found]) for found in graphs}
        return self._forks.run({model: own.get(model, models[model]) for model in inputs}, inputs)

    def prepare(self, models: Mapping[str, Model], inputs: Mapping[str, Tensor]) -> None:
        """Records a combination, if that can be done and there is memory for it; takes a while.

        Raises:
            Exception: whatever a model raises that cannot run at all.
        """
        combination = as_recorded({model: len(images) for model, images in inputs.items()})
        if combination in self._kept:
            self._kept.move_to_end(combination)
        if combination in self._kept or combination in self._refused:
            return
        del self._missed[combination]
        self._refused.add(combination)  # unless all goes well
        examples = {model: inputs[model].new_zeros(size, *inputs[model].shape[1:]) for model, size in combination}
        try:
            recorded = self._record({model: models[model] for model, _ in combination}, examples)
        except (CaptureError, torch.OutOfMemoryError) as error:
            names = " and ".join(model for model, _ in combination)
            _LOG.warning("%s: runs without a CUDA graph for this combination, more slowly: %s", names, error)
            return
        kept_bytes = {found: graph.bytes for found, graph in self._kept.items()}
        gone = make_way(kept_bytes, combination, recorded.bytes, self._most_bytes)
        if gone is None:
            return
        self._drop(gone)
        self._kept[combination] = recorded
        self._refused.remove(combination)

    def forget(self, models: Collection[str]) -> None:
        """Models are gone: no combination with them is asked for again, and their streams are given back."""

        def has_gone(combination: Group) -> bool:
            return any(model in models for model, _ in combination)

        self._drop([found for found in self._kept if has_gone(found)])
        self._missed = Counter({found: count for found, count in self._missed.items() if not has_gone(found)})
        if models:
            self._refused.clear()  # there may be memory now
            self._forks.forget(models)

    def _drop(self, combinations: Collection[Group]) -> None:
        if combinations:
            self._forks.wait()  # they may be running
        for combination in combinations:
            del self._kept[combination]


def _replay(recorded: Recorded, inputs: Mapping[str, Tensor]) -> dict[str, Sequence[Tensor]]:
    for model, images in inputs.items():
        recorded.inputs[model][: len(images)].copy_(images, non_blocking=True)
    recorded.launch()
    return {
        model: tuple(output[: len(inputs[model])] for output in outputs) for model, outputs in recorded.outputs.items()
    }


def _alone(recorded: Recorded) -> Model:
    """The graph of one model, to be launched in a stream beside others."""
    (name,) = recorded.inputs
    return lambda images: _replay(recorded, {name: images})[name]


class Forks:
    """Streams of one device, over which models fork out of one stream and join it again.

    Each model has a stream of its own as long as it is loaded. cuBLAS has one workspace a stream, which graphs keep
    using: two models' graphs that were recorded on one stream would overwrite each other's values.

    Args:
        device: a GPU, where there is anything to fork.
        stream: out of which they fork.
    """

    def __init__(self, device: torch.device, stream: Stream) -> None:
        self._device = device
        self._stream = stream
        self._streams: dict[str, Stream] = {}

    def wait(self) -> None:
        """Returns once all that was given to the stream is done."""
        self._stream.fence().wait()

    def forget(self, models: Collection[str]) -> None:
        """Gives the streams of models back; no graph of theirs is left."""
        for model in models:
            self._streams.pop(model, None)

    def run(self, models: Mapping[str, Model], inputs: Mapping[str, Tensor]) -> dict[str, Sequence[Tensor]]:
        """Each model on its batch, kernel by kernel, side by side; called inside of the stream's ``work``.

        The memory of results is taken again only by what forks later, and so after what the stream does with them.
        """
        outputs, ends = {}, []
        for name, model in models.items():
            if name not in self._streams:
                self._streams[name] = Stream(self._device)
            stream = self._streams[name]
            with stream.work(name):
                outputs[name] = model(inputs[name])
            ends.append(stream.fence())
        for end in ends:  # only now: work that starts after one's end would not run beside it
            self._stream.wait_for(end)
        return outputs

    def record(self, models: Mapping[str, Model], examples: Mapping[str, Tensor]) -> Recorded:
        """The same as one graph; what it keeps of memory it keeps to itself.

        Raises:
            torch.OutOfMemoryError: the device has no room for it.
            CaptureError: a model cannot be recorded.
        """
        with torch.inference_mode(), self._stream.work("record"):
            inputs = {
                model: example.contiguous(memory_format=torch.channels_last) for model, example in examples.items()
            }
            recorded = capture(lambda: self.run(models, inputs), self._stream)
        return Recorded(inputs, recorded.results, recorded.launch, recorded.bytes)
