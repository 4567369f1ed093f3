"""Which graphs are recorded, kept and dropped; recording itself needs a GPU (test/gpu)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from split_infer_ros.runtime.captures import CaptureError
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.serving.execution_costs import group
from split_infer_ros.serving.forked_graphs import ForkedGraphs, Forks, Model, Recorded

MODELS: dict[str, Model] = {"a": lambda x: (2 * x,), "b": lambda x: (x + 1, x.sum(dim=(1, 2, 3)))}


class Recorder:
    """As a GPU: each launch writes its results into the same memory; a graph takes 100 bytes an image."""

    def __init__(self) -> None:
        self.recorded: list[dict[str, int]] = []
        self.launched: list[dict[str, int]] = []

    def __call__(self, models: Mapping[str, Model], examples: Mapping[str, Tensor]) -> Recorded:
        counts = {name: len(example) for name, example in examples.items()}
        self.recorded.append(counts)
        outputs = {name: models[name](examples[name]) for name in models}

        def launch() -> None:
            self.launched.append(counts)
            for name, model in models.items():
                for place, new in zip(outputs[name], model(examples[name]), strict=True):
                    place.copy_(new)

        return Recorded(examples, outputs, launch, 100 * sum(map(len, examples.values())))


class Queue(Forks):
    """Of a device that has nothing to fork; counts how often it was waited for."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), Stream(torch.device("cpu")))
        self.waits = 0

    def wait(self) -> None:
        self.waits += 1


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def images(**counts: int) -> dict[str, Tensor]:
    """Of whole numbers: their sums are the same bits at any batch size, on any processor."""
    return {name: torch.randint(1000, (count, 3, 2, 2)).float() for name, count in counts.items()}


def expect_own_results(found: Mapping[str, Sequence[Tensor]], inputs: Mapping[str, Tensor]) -> None:
    assert list(found) == list(inputs)
    for name, images in inputs.items():
        assert all(torch.equal(*pair) for pair in zip(found[name], MODELS[name](images), strict=True))


def test_batches_are_padded_and_get_their_own_results(recorder: Recorder) -> None:
    graphs = ForkedGraphs(Queue(), 10_000, recorder)
    for counts in ({"a": 3, "b": 1}, {"a": 4, "b": 1}):
        inputs = images(**counts)
        graphs.prepare(MODELS, inputs)
        expect_own_results(graphs.run(MODELS, inputs), inputs)
    assert recorder.recorded == [{"a": 4, "b": 1}]
    assert recorder.launched == 2 * [{"a": 4, "b": 1}]
    assert graphs.wanted is None


def test_what_was_not_recorded_takes_the_models_own_graphs_and_is_not_recorded_while_it_runs(
    recorder: Recorder,
) -> None:
    graphs = ForkedGraphs(Queue(), 10_000, recorder)
    graphs.prepare(MODELS, images(a=4))
    inputs = images(a=3, b=2)
    for _ in range(2):
        expect_own_results(graphs.run(MODELS, inputs), inputs)
    graphs.prepare(MODELS, images(b=2))
    expect_own_results(graphs.run(MODELS, inputs), inputs)
    graphs.run(MODELS, images(a=1))
    assert recorder.recorded == [{"a": 4}, {"b": 2}]
    assert recorder.launched == [{"a": 4}, {"a": 4}, {"a": 4}, {"b": 2}]
    assert graphs.wanted == group({"a": 4, "b": 2}), "it came most often"
    graphs.prepare(MODELS, inputs)
    assert graphs.wanted == group({"a": 1})
    expect_own_results(graphs.run(MODELS, inputs), inputs)
    assert recorder.launched[-1] == {"a": 4, "b": 2}


def test_what_was_not_used_for_longest_is_dropped_first(recorder: Recorder) -> None:
    queue = Queue()
    graphs = ForkedGraphs(queue, 400, recorder)
    for counts in ({"a": 1}, {"b": 2}, {"a": 1}, {"b": 1}, {"a": 1}, {"a": 2}):
        graphs.prepare(MODELS, images(**counts))
        graphs.run(MODELS, images(**counts))
        assert graphs.bytes <= 400
    assert recorder.recorded == [{"a": 1}, {"b": 2}, {"b": 1}, {"a": 2}]
    assert group({"b": 2}) not in graphs
    assert len(graphs) == 3
    assert queue.waits == 1, "one that may be running was dropped"


def test_what_there_is_no_memory_for_is_not_kept_and_not_asked_for_again(recorder: Recorder) -> None:
    graphs = ForkedGraphs(Queue(), 400, recorder)
    for counts in ({"a": 1}, {"a": 8}, {"a": 8}):
        inputs = images(**counts)
        graphs.prepare(MODELS, inputs)
        expect_own_results(graphs.run(MODELS, inputs), inputs)
    assert recorder.recorded == [{"a": 1}, {"a": 8}]
    assert recorder.launched == [{"a": 1}]
    assert (len(graphs), graphs.wanted) == (1, None)


def test_what_cannot_be_recorded_runs_without(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(models: Mapping[str, Model], examples: Mapping[str, Tensor]) -> Recorded:
        raise CaptureError("The work cannot be recorded as a CUDA graph (it waits for the device).")

    graphs = ForkedGraphs(Queue(), 400, refuse)
    inputs = images(a=2, b=1)
    for _ in range(2):
        graphs.prepare(MODELS, inputs)
        expect_own_results(graphs.run(MODELS, inputs), inputs)
    assert (len(graphs), graphs.wanted) == (0, None)
    assert [record.message.partition(":")[0] for record in caplog.records] == ["a and b"]


def test_room_is_for_what_the_models_take_one_by_one(recorder: Recorder) -> None:
    graphs = ForkedGraphs(Queue(), 600, recorder)
    for counts in ({"a": 1}, {"b": 2}):
        graphs.prepare(MODELS, images(**counts))
    assert graphs.has_room(group({"a": 1, "b": 2}))
    graphs.prepare(MODELS, images(a=1, b=2))
    assert graphs.bytes == 600
    assert not graphs.has_room(group({"a": 1, "b": 2}))


def test_what_a_model_that_is_gone_took_part_in_is_forgotten(recorder: Recorder) -> None:
    graphs = ForkedGraphs(Queue(), 10_000, recorder)
    for counts in ({"a": 1}, {"b": 2}, {"a": 1, "b": 1}):
        graphs.prepare(MODELS, images(**counts))
    graphs.run(MODELS, images(b=4))
    graphs.forget(["b"])
    assert len(graphs) == 1
    assert group({"a": 1}) in graphs
    assert graphs.wanted is None


def test_models_that_fork_give_what_each_gives_alone() -> None:
    inputs = images(a=3, b=2)
    expect_own_results(Queue().run(MODELS, inputs), inputs)
