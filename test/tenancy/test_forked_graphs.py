"""Which graphs are recorded, kept and dropped; recording itself needs a GPU (test/gpu)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from split_infer_ros.pipeline.device import DeviceQueue
from split_infer_ros.tenancy.costs import group
from split_infer_ros.tenancy.forked_graphs import ForkedGraphs, Forks, Model, Recorded, padded

MODELS: dict[str, Model] = {"a": lambda x: (2 * x,), "b": lambda x: (x + 1, x.sum(dim=(1, 2, 3)))}


class Recorder:
    """As a GPU: each launch writes its results into the same memory; a graph takes 100 bytes an image."""

    def __init__(self) -> None:
        self.recorded: list[dict[str, int]] = []

    def __call__(self, models: Mapping[str, Model], examples: Mapping[str, Tensor]) -> Recorded:
        self.recorded.append({name: len(example) for name, example in examples.items()})
        outputs = {name: models[name](examples[name]) for name in models}

        def launch() -> None:
            for name, model in models.items():
                for place, new in zip(outputs[name], model(examples[name]), strict=True):
                    place.copy_(new)

        return Recorded(examples, outputs, launch, 100 * sum(map(len, examples.values())))


class Queue(Forks):
    """Of a device that has nothing to fork; counts how often it was waited for."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), DeviceQueue(torch.device("cpu")))
        self.waits = 0

    def wait(self) -> None:
        self.waits += 1


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def images(**counts: int) -> dict[str, Tensor]:
    return {name: torch.rand(count, 3, 2, 2) for name, count in counts.items()}


def test_batches_are_padded_and_get_their_own_results(recorder: Recorder) -> None:
    graphs = ForkedGraphs(Queue(), 10_000, recorder)
    for counts in ({"a": 3, "b": 1}, {"a": 4, "b": 1}):
        inputs = images(**counts)
        found = graphs.run(MODELS, inputs)
        for name, model in MODELS.items():
            assert all(torch.equal(*pair) for pair in zip(found[name], model(inputs[name]), strict=True))
    assert recorder.recorded == [{"a": 4, "b": 1}]
    assert [padded(count) for count in (1, 2, 3, 4, 5, 9)] == [1, 2, 4, 4, 8, 16]


def test_what_was_not_used_for_longest_is_dropped_first(recorder: Recorder) -> None:
    queue = Queue()
    graphs = ForkedGraphs(queue, 400, recorder)
    for counts in ({"a": 1}, {"b": 2}, {"a": 1}, {"b": 1}, {"a": 1}, {"b": 2}, {"a": 8}):
        graphs.run(MODELS, images(**counts))
        assert graphs.bytes <= 400 or counts == {"a": 8}
    assert recorder.recorded == [{"a": 1}, {"b": 2}, {"b": 1}, {"a": 8}]
    assert graphs.bytes == 800
    assert len(graphs) == 1
    assert group({"a": 8}) in graphs
    assert queue.waits == 3, "one that may be running was dropped"


def test_what_a_model_that_is_gone_took_part_in_is_forgotten(recorder: Recorder) -> None:
    graphs = ForkedGraphs(Queue(), 10_000, recorder)
    for counts in ({"a": 1}, {"b": 2}, {"a": 1, "b": 1}):
        graphs.run(MODELS, images(**counts))
    graphs.forget(["b"])
    assert len(graphs) == 1
    assert group({"a": 1}) in graphs


def test_models_that_fork_give_what_each_gives_alone() -> None:
    inputs = images(a=3, b=2)
    found = Queue().run(MODELS, inputs)
    assert all(
        torch.equal(*pair) for name in MODELS for pair in zip(found[name], MODELS[name](inputs[name]), strict=True)
    )
