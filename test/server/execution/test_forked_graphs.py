"""Which graphs are recorded, kept and evicted; recording itself needs a GPU (test/gpu)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from split_infer_ros.engines.compute import Backbone
from split_infer_ros.engines.cuda.model_streams import ModelStreams, RecordedGraph
from split_infer_ros.runtime.captures import CaptureError
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.server.execution.forked_graphs import ForkedGraphs
from split_infer_ros.server.schedule.execution_costs import combination_of

MODELS: dict[str, Backbone] = {"a": lambda x: (2 * x,), "b": lambda x: (x + 1, x.sum(dim=(1, 2, 3)))}


class SimulatedRecorder:
    """Records as a GPU does: each launch writes into the same memory; a graph takes 100 bytes an image."""

    def __init__(self) -> None:
        self.recorded: list[dict[str, int]] = []
        self.launched: list[dict[str, int]] = []

    def __call__(self, models: Mapping[str, Backbone], examples: Mapping[str, Tensor]) -> RecordedGraph:
        counts = {name: len(example) for name, example in examples.items()}
        self.recorded.append(counts)
        outputs = {name: models[name](examples[name]) for name in models}

        def launch() -> None:
            self.launched.append(counts)
            for name, model in models.items():
                for output, value in zip(outputs[name], model(examples[name]), strict=True):
                    output.copy_(value)

        return RecordedGraph(examples, outputs, launch, 100 * sum(map(len, examples.values())))


class CpuStreams(ModelStreams):
    """Model streams of a device without streams; counts the waits."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), Stream(torch.device("cpu")))
        self.waits = 0

    def wait(self) -> None:
        self.waits += 1


@pytest.fixture
def recorder() -> SimulatedRecorder:
    return SimulatedRecorder()


def images(**counts: int) -> dict[str, Tensor]:
    """Images of whole numbers: their sums have the same bits at any batch size, on any processor."""
    return {name: torch.randint(1000, (count, 3, 2, 2)).float() for name, count in counts.items()}


def check_results(results: Mapping[str, Sequence[Tensor]], inputs: Mapping[str, Tensor]) -> None:
    """Each model gave what it gives alone for its images."""
    assert list(results) == list(inputs)
    for name, images in inputs.items():
        expected = MODELS[name](images)
        assert all(torch.equal(actual, value) for actual, value in zip(results[name], expected, strict=True))


def test_batches_are_padded_and_get_their_own_results(recorder: SimulatedRecorder) -> None:
    graphs = ForkedGraphs(CpuStreams(), 10_000, recorder)
    for counts in ({"a": 3, "b": 1}, {"a": 4, "b": 1}):
        inputs = images(**counts)
        graphs.prepare(MODELS, inputs)
        check_results(graphs.run(MODELS, inputs), inputs)
    assert recorder.recorded == [{"a": 4, "b": 1}]
    assert recorder.launched == 2 * [{"a": 4, "b": 1}]
    assert graphs.most_missed is None


def test_unrecorded_combination_uses_single_models_graphs(recorder: SimulatedRecorder) -> None:
    """It is not recorded while it runs."""
    graphs = ForkedGraphs(CpuStreams(), 10_000, recorder)
    graphs.prepare(MODELS, images(a=4))
    inputs = images(a=3, b=2)
    for _ in range(2):
        check_results(graphs.run(MODELS, inputs), inputs)
    graphs.prepare(MODELS, images(b=2))
    check_results(graphs.run(MODELS, inputs), inputs)
    graphs.run(MODELS, images(a=1))  # no graph of a is so small
    assert recorder.recorded == [{"a": 4}, {"b": 2}]
    assert recorder.launched == [{"a": 4}, {"a": 4}, {"a": 4}, {"b": 2}]
    assert graphs.most_missed == combination_of({"a": 4, "b": 2}), "it came most often"
    graphs.prepare(MODELS, inputs)
    assert graphs.most_missed == combination_of({"a": 1})
    check_results(graphs.run(MODELS, inputs), inputs)
    assert recorder.launched[-1] == {"a": 4, "b": 2}


def test_least_recently_used_graph_is_evicted_first(recorder: SimulatedRecorder) -> None:
    streams = CpuStreams()
    graphs = ForkedGraphs(streams, 400, recorder)
    for counts in ({"a": 1}, {"b": 2}, {"a": 1}, {"b": 1}, {"a": 1}, {"a": 2}):
        graphs.prepare(MODELS, images(**counts))
        graphs.run(MODELS, images(**counts))
        assert graphs.bytes <= 400
    assert recorder.recorded == [{"a": 1}, {"b": 2}, {"b": 1}, {"a": 2}]
    assert combination_of({"b": 2}) not in graphs
    assert len(graphs) == 3
    assert streams.waits == 1, "the evicted graph may have been running"


def test_graph_without_room_is_not_recorded_again(recorder: SimulatedRecorder) -> None:
    graphs = ForkedGraphs(CpuStreams(), 400, recorder)
    for counts in ({"a": 1}, {"a": 8}, {"a": 8}):
        inputs = images(**counts)
        graphs.prepare(MODELS, inputs)
        check_results(graphs.run(MODELS, inputs), inputs)
    assert recorder.recorded == [{"a": 1}, {"a": 8}]
    assert recorder.launched == [{"a": 1}]
    assert (len(graphs), graphs.most_missed) == (1, None)


def test_combination_that_cannot_be_recorded_still_runs(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(models: Mapping[str, Backbone], examples: Mapping[str, Tensor]) -> RecordedGraph:
        raise CaptureError("The work cannot be recorded as a CUDA graph (it waits for the device).")

    graphs = ForkedGraphs(CpuStreams(), 400, refuse)
    inputs = images(a=2, b=1)
    for _ in range(2):
        graphs.prepare(MODELS, inputs)
        check_results(graphs.run(MODELS, inputs), inputs)
    assert (len(graphs), graphs.most_missed) == (0, None)
    assert [record.message.partition(":")[0] for record in caplog.records] == ["a and b"]


def test_room_is_what_the_single_models_graphs_take(recorder: SimulatedRecorder) -> None:
    graphs = ForkedGraphs(CpuStreams(), 600, recorder)
    for counts in ({"a": 1}, {"b": 2}):
        graphs.prepare(MODELS, images(**counts))
    assert graphs.has_room(combination_of({"a": 1, "b": 2}))
    graphs.prepare(MODELS, images(a=1, b=2))
    assert graphs.bytes == 600
    assert not graphs.has_room(combination_of({"a": 1, "b": 2}))


def test_graphs_of_a_removed_model_are_removed(recorder: SimulatedRecorder) -> None:
    graphs = ForkedGraphs(CpuStreams(), 10_000, recorder)
    for counts in ({"a": 1}, {"b": 2}, {"a": 1, "b": 1}):
        graphs.prepare(MODELS, images(**counts))
    graphs.run(MODELS, images(b=4))
    graphs.remove_models(["b"])
    assert len(graphs) == 1
    assert combination_of({"a": 1}) in graphs
    assert graphs.most_missed is None


def test_forked_models_give_what_each_gives_alone() -> None:
    inputs = images(a=3, b=2)
    check_results(CpuStreams().run(MODELS, inputs), inputs)
