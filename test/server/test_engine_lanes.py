"""Lanes of tenants on OpenVINO: each has a stream of its own, so their executions overlap."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

openvino = pytest.importorskip("openvino")
pytest.importorskip("onnx")

import numpy as np  # noqa: E402
from small_graphs import ROUNDING, images, in_torch, small_graph  # noqa: E402

from split_infer_ros.engines.engine import Engine  # noqa: E402
from split_infer_ros.engines.openvino_part import OpenVinoPart  # noqa: E402
from split_infer_ros.runtime.num_threads import engine_lanes, engine_threads  # noqa: E402
from split_infer_ros.server import executor  # noqa: E402
from split_infer_ros.server.executor import Executor  # noqa: E402
from split_infer_ros.server.loaded_models import LoadedModels  # noqa: E402

NUM_LANES = 2
MEET_S = 60.0


class Meeting(openvino.Op):  # type: ignore[misc]
    """An operator that passes its input on once as many executions are in it as there are lanes."""

    barrier = threading.Barrier(NUM_LANES)

    def __init__(self, inputs: list[Any] | None = None) -> None:
        super().__init__(self, inputs)

    def validate_and_infer_types(self) -> None:
        self.set_output_type(0, self.get_input_element_type(0), self.get_input_partial_shape(0))

    def clone_with_new_inputs(self, new_inputs: list[Any]) -> Meeting:
        return Meeting(new_inputs)

    def has_evaluate(self) -> bool:
        return True

    def visit_attributes(self, visitor: object) -> bool:
        return True

    def evaluate(self, outputs: list[Any], inputs: list[Any]) -> bool:
        with_others = True
        try:
            self.barrier.wait(MEET_S)
        except threading.BrokenBarrierError:
            with_others = False
        np.copyto(outputs[0].data, inputs[0].data if with_others else np.nan)
        return True


class MeetingCore:
    """OpenVINO's core, which puts a meeting behind the images of each model that it reads."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def read_model(self, *source: Any) -> Any:
        model = self._core.read_model(*source)
        (images_,) = model.get_parameters()
        users = list(images_.output(0).get_target_inputs())
        meeting = Meeting([images_.output(0)])
        for user in users:
            user.replace_source_output(meeting.output(0))
        model.validate_nodes_and_infer_types()
        return model

    def compile_model(self, *arguments: Any) -> Any:
        return self._core.compile_model(*arguments)

    def get_property(self, *names: str) -> Any:
        return self._core.get_property(*names)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    monkeypatch.setattr(executor, "max_threads", lambda: NUM_LANES)
    pool = Executor(threading.Condition(), torch.device("cpu"), num_lanes=NUM_LANES)
    yield pool
    pool.close()


def load(pool: Executor, part: OpenVinoPart) -> None:
    pool.load(LoadedModels({"one": part}, {"one": 1.0}, {"one": Engine.OPENVINO}, num_threads={}))


def test_lanes_execute_at_the_same_time(pool: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one execution waited for the other, the two would never meet, and the results would be no numbers.

    Results are equal to torch's up to rounding; see ``ROUNDING``.
    """
    make_core = openvino.Core
    with monkeypatch.context() as patch:
        patch.setattr(openvino, "Core", lambda: MeetingCore(make_core()))
        part = OpenVinoPart(small_graph())
    load(pool, part)
    assert pool.concurrent is not None
    given = images(1)
    found = pool.concurrent.run({"one": given})["one"]
    for one, expected in zip(found, in_torch(given), strict=True):
        assert (one - expected).abs().max() <= ROUNDING * expected.abs().max()


def test_runners_of_lanes_tell_the_engine_how_many_they_are(pool: Executor) -> None:
    """All cores at once are one lane, on which an engine has all its threads."""
    load(pool, OpenVinoPart(small_graph()))

    def told(runner: Any) -> tuple[int, int]:
        runner.set_threads("one")
        return engine_threads(), engine_lanes()

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(told, pool.lane_runners[0]).result() == (1, NUM_LANES)
        assert thread.submit(told, pool.whole).result()[1] == 1
