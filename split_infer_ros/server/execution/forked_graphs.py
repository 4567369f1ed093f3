"""The recorded graphs of a GPU. Each runs the batches of one combination of models with a single launch."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping
from typing import Protocol

from split_infer_ros.engines.compute import Backbone, Features, Images
from split_infer_ros.engines.cuda.model_streams import ModelStreams, RecordedGraph, blank_like
from split_infer_ros.runtime.captures import CaptureError
from split_infer_ros.runtime.cuda import OutOfMemory
from split_infer_ros.server.execution.recording import can_be_recorded
from split_infer_ros.server.schedule.execution_costs import Combination
from split_infer_ros.server.schedule.graph_policy import graphs_for, graphs_to_evict, padded_combination

_LOG = logging.getLogger(__name__)


class GraphRecorder(Protocol):
    """Records models that run concurrently as one graph, given a batch of each as an example."""

    def __call__(self, models: Mapping[str, Backbone], examples: Mapping[str, Images]) -> RecordedGraph: ...


class ForkedGraphs:
    """The graphs of combinations of models. In a graph, each model runs on a stream of its own, beside the others.

    The graph of two models with merged layers may have fused layers instead; see ``ModelStreams.record``.

    The memory of all graphs is limited. The module ``graph_policy`` decides which graphs are kept.

    Args:
        model_streams: the streams over which the graphs fork.
        max_bytes: the most bytes of GPU memory that all graphs may keep.
        record: records a graph; tests replace it.
    """

    def __init__(self, model_streams: ModelStreams, max_bytes: int, record: GraphRecorder | None = None) -> None:
        self._model_streams = model_streams
        self._record = record or model_streams.record
        self._max_bytes = max_bytes
        self._graphs: OrderedDict[Combination, RecordedGraph] = OrderedDict()  # the least recently used first
        self._misses: Counter[Combination] = Counter()
        self._refused: set[Combination] = set()  # combinations that cannot be recorded, or that have no memory
        self._failed: set[Combination] = set()  # combinations that failed once; something else may have spoilt them

    def __len__(self) -> int:
        return len(self._graphs)

    def __contains__(self, combination: Combination) -> bool:
        return combination in self._graphs

    @property
    def bytes(self) -> int:
        """Bytes of GPU memory that all graphs keep."""
        return sum(graph.bytes for graph in self._graphs.values())

    @property
    def most_missed(self) -> Combination | None:
        """The combination that ran most often without a graph; None if there is none."""
        return self._misses.most_common(1)[0][0] if self._misses else None

    def has_room(self, combination: Combination) -> bool:
        """Returns whether a graph of the combination probably fits beside all other graphs.

        The estimate of its memory is the sum of the graphs that its models have alone.
        """
        single_bytes = [self._graphs[single,].bytes for single in combination if (single,) in self._graphs]
        return self.bytes + sum(single_bytes) <= self._max_bytes

    def run(self, models: Mapping[str, Backbone], inputs: Mapping[str, Images]) -> dict[str, Features]:
        """Runs one execution, with a single launch if its combination is recorded. Records nothing.

        The results are valid until these models run again.

        Args:
            models: the backbones by name.
            inputs: for each model that runs, its n images (n, 3, h, w). A graph for more images may run them; see
                ``padded_combination``.
        """
        counts = {model: len(images) for model, images in inputs.items()}
        combination = padded_combination(counts)
        serving = graphs_for(counts, self._graphs)
        for graph in serving:
            self._graphs.move_to_end(graph)
        if combination in serving:
            return self._graphs[combination].run(inputs)
        if combination not in self._refused:
            self._misses[combination] += 1
        replayed = {graph[0][0]: _replayed_model(self._graphs[graph]) for graph in serving}
        return self._model_streams.run({model: replayed.get(model, models[model]) for model in inputs}, inputs)

    def prepare(self, models: Mapping[str, Backbone], inputs: Mapping[str, Images]) -> None:
        """Records a combination, if that is possible and there is enough memory. This takes tenths of a second.

        Args:
            models: the backbones by name.
            inputs: for each model of the combination, its n images (n, 3, h, w).

        Raises:
            Exception: the error of a model that cannot run at all.
        """
        combination = padded_combination({model: len(images) for model, images in inputs.items()})
        if combination in self._graphs:
            self._graphs.move_to_end(combination)
            return
        if combination in self._refused:
            return
        del self._misses[combination]
        self._refused.add(combination)  # removed once the combination is recorded
        holds = self._model_streams.holds  # a model may run on the CPU beside models on the GPU
        if not all(can_be_recorded(models[model]) and holds(inputs[model]) for model, _ in combination):
            return
        examples = {model: blank_like(inputs[model], size) for model, size in combination}
        try:
            graph = self._record({model: models[model] for model, _ in combination}, examples)
        except (CaptureError, OutOfMemory) as error:
            if isinstance(error, CaptureError) and combination not in self._failed:
                self._failed.add(combination)
                self._refused.remove(combination)  # recording is tried once more, after another run without a graph
                return
            names = " and ".join(model for model, _ in combination)
            _LOG.warning("%s: runs without a CUDA graph for this combination, more slowly: %s", names, error)
            return
        graph_bytes = {kept: kept_graph.bytes for kept, kept_graph in self._graphs.items()}
        evicted = graphs_to_evict(graph_bytes, combination, new_bytes=graph.bytes, max_bytes=self._max_bytes)
        if evicted is None:
            return
        self._remove(evicted)
        self._graphs[combination] = graph
        self._refused.remove(combination)

    def remove_models(self, models: Collection[str]) -> None:
        """Removes the graphs and the streams of models that were unloaded, and what is known about their recording."""

        def is_removed(combination: Combination) -> bool:
            return any(model in models for model, _ in combination)

        self._remove([combination for combination in self._graphs if is_removed(combination)])
        kept_misses = {combination: count for combination, count in self._misses.items() if not is_removed(combination)}
        self._misses = Counter(kept_misses)
        if models:
            self._refused.clear()  # there may be enough memory now
            self._failed.clear()
            self._model_streams.remove_models(models)

    def _remove(self, combinations: Collection[Combination]) -> None:
        if combinations:
            self._model_streams.wait()  # the graphs may be running
        for combination in combinations:
            del self._graphs[combination]


def _replayed_model(graph: RecordedGraph) -> Backbone:
    """Returns a backbone that launches the graph of a single model in the current stream."""
    name = next(iter(graph.inputs))
    return lambda images: graph.run({name: images})[name]
