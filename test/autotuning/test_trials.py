"""Real trials of a small model, in this process and in one of their own."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import split_infer_ros
from split_infer_ros.autotuning import result_check, segment_trials
from split_infer_ros.autotuning import trials as trials_module
from split_infer_ros.autotuning.memory_formats import MemoryFormat
from split_infer_ros.autotuning.model_features import model_features
from split_infer_ros.autotuning.spaces import (
    CHAIN,
    CONVERSION,
    LAYOUTS,
    NETWORK,
    PIPELINE,
    RIVAL,
    RIVALS,
    SEGMENTS,
    TURNS,
    UNIFORM,
    WORK,
    network_space,
    pipeline_space,
)
from split_infer_ros.autotuning.trials import Trials
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import Convolutions, ExecutionConfig
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements import turns
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.result_agreement import ResultDifference

DEFAULT = dict(network_space(1, compilers=False).default)
ABOUT = {"batch_size": 1}
PACKED, CONTIGUOUS = Convolutions.PACKED.value, Convolutions.CONTIGUOUS.value


@pytest.fixture(scope="module")
def trials() -> Iterator[Trials]:
    threads = torch.get_num_threads()
    yield Trials(ModelSpec("shapes", device="cpu"))
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "GROUP_S", 0.0)
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    monkeypatch.setattr(turns, "MAX_TURNS", 4)
    monkeypatch.setattr(segment_trials, "SEGMENT_S", 0.0)


@pytest.mark.parametrize(
    ("convolutions", "folding"), [*((kind.value, True) for kind in Convolutions), (PACKED, False), (CONTIGUOUS, False)]
)
def test_a_network_is_timed_and_its_results_compared(trials: Trials, convolutions: str, folding: bool) -> None:
    answer = trials.run(NETWORK, {**DEFAULT, "convolutions": convolutions, "folding": folding}, ABOUT, 0.0)
    assert len(answer["costs"]) >= 3
    assert 0 <= answer["difference"] < 1e-4
    assert answer["differs"].startswith("boxes by up to "), "scenes of shapes have more than ten detections"
    assert json.dumps(answer)


def test_batches_of_several_images_are_timed_on_lanes(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lane runs a batch, so a batch takes half of the time of a call on two lanes."""
    told: dict[int, tuple[int, int]] = {}

    def use_threads(engine: Engine, num_threads: int, num_lanes: int) -> None:
        told[threading.get_ident()] = num_threads, num_lanes

    def timed(run: Callable[[], None], group_s: float = 0.0) -> list[float]:
        run()
        return [2.0]

    monkeypatch.setattr(Engine, "use_threads", use_threads)
    monkeypatch.setattr(trials_module, "count_lanes", lambda model: 2)
    monkeypatch.setattr(trials_module, "max_threads", lambda: 4)
    monkeypatch.setattr(trials_module, "timed", timed)
    monkeypatch.setattr(turns, "timed", timed)
    config = {**DEFAULT, "threads": 4}
    for batch_size, cost, threads in ((1, 2.0, (4, 1)), (2, 1.0, (2, 2))):
        about, rivals = {"batch_size": batch_size}, {"one": config}
        told.clear()
        assert trials.run(RIVAL, config, about, 0.0)["costs"] == [cost]
        assert (len(told) == 1) == (batch_size == 1)
        assert set(trials.run(RIVALS, {}, {**about, RIVALS: rivals}, 0.0)[TURNS]["one"]) == {cost}
        assert set(trials.run(NETWORK, config, about, 0.0)["costs"]) == {cost}
        assert set(told.values()) == {threads}


def test_different_results_are_refused_in_fp32_only(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = trials.run(NETWORK, {**DEFAULT, "precision": "bf16", "convolutions": "channels_last"}, ABOUT, 0.0)
    assert 1e-4 < answer["difference"] < 1
    monkeypatch.setattr(ResultDifference, "agrees", lambda difference, allowed: False)
    with pytest.raises(ConfigurationError, match="Results differ from the model's as built"):
        trials.run(NETWORK, {**DEFAULT, "convolutions": CONTIGUOUS}, {"batch_size": 2}, 0.0)


@pytest.mark.parametrize("difference", [math.nan, math.inf])
def test_results_that_are_not_finite_are_always_refused(
    trials: Trials, monkeypatch: pytest.MonkeyPatch, difference: float
) -> None:
    monkeypatch.setattr(result_check, "compare_results", lambda *given, classifies: ResultDifference(difference, None))
    with pytest.raises(ConfigurationError, match=f"by {difference} of the largest; any finite difference is allowed"):
        trials.run(NETWORK, {**DEFAULT, "precision": "bf16"}, ABOUT, 0.0)


def test_segments_are_timed_in_their_format(trials: Trials) -> None:
    model = trials.model(ExecutionConfig())
    for kind in (PACKED, CONTIGUOUS):
        answer = trials.run(SEGMENTS, {**DEFAULT, "convolutions": kind}, ABOUT, 1.0)
        assert len(answer[WORK]) == len(answer[CONVERSION]) == len(answer[LAYOUTS]) == len(model.split_points) - 1
        first = "contiguous" if kind == CONTIGUOUS else "channels_last"
        assert answer[LAYOUTS][0] == first, "a convolution keeps the layout of its input"
        assert all(min(found["costs"]) > 0 and len(found["costs"]) >= 3 for found in answer[WORK])
        assert all(type(found["uncertain"]) is bool for found in answer[WORK] + answer[CONVERSION])


@pytest.mark.parametrize(
    ("shapes", "memory_format"),
    [
        ([(2, 3, 4, 4)], MemoryFormat.CONTIGUOUS),
        ([(2, 3, 4, 4), (5,)], MemoryFormat.CONTIGUOUS),
        ([(2, 3, 1, 1)], MemoryFormat.ANY),
        ([(2, 7)], MemoryFormat.ANY),
    ],
)
def test_formats_are_read_from_strides(shapes: list[tuple[int, ...]], memory_format: MemoryFormat) -> None:
    tensors = tuple(map(torch.zeros, shapes))
    assert segment_trials.found_format(tensors) is memory_format
    converted = segment_trials.in_format(tensors, MemoryFormat.CHANNELS_LAST)
    assert segment_trials.found_format(converted) is (
        MemoryFormat.ANY if memory_format is MemoryFormat.ANY else MemoryFormat.CHANNELS_LAST
    )
    assert segment_trials.found_format((torch.zeros(2, 3, 4, 4).transpose(2, 3),)) is MemoryFormat.MIXED


@pytest.mark.parametrize("split_point", ["neck", "output"])
def test_a_rivals_backbone_is_exported_in_the_trial_and_not_by_the_node(
    monkeypatch: pytest.MonkeyPatch, split_point: str
) -> None:
    pytest.importorskip("onnxruntime")
    spec, config = ModelSpec("shapes", "none", "cpu", on_torch=True), {**DEFAULT, "engine": "onnxruntime"}
    found = Trials(spec).run(RIVAL, config, {**ABOUT, "split_point": split_point}, 60.0)
    assert found["costs"]
    monkeypatch.setattr(torch.onnx, "export", None)
    load_model(replace(spec, execution_config=ExecutionConfig.from_json(config))).backbone(split_point)


def test_rivals_take_turns(trials: Trials) -> None:
    rivals = {kind: {**DEFAULT, "convolutions": kind} for kind in (PACKED, CONTIGUOUS)}
    for rival in rivals.values():
        answer = trials.run(RIVAL, rival, ABOUT, 60.0)
        assert len(answer["costs"]) >= 1
        assert 0 <= answer["difference"] < 1e-4
    both = {**ABOUT, RIVALS: rivals}
    found = trials.run(RIVALS, {}, both, 60.0)[TURNS]
    assert {name: len(costs) for name, costs in found.items()} == dict.fromkeys(rivals, turns.MAX_TURNS)
    assert all(cost > 0 for costs in found.values() for cost in costs)
    assert not trials.run(RIVALS, {}, both, 0.0)[TURNS], "their turns are over"
    trials.run(RIVAL, DEFAULT, ABOUT, 60.0)
    unknown = {"known": DEFAULT, "unknown": {**DEFAULT, "folding": False}}
    found = trials.run(RIVALS, {}, {**ABOUT, RIVALS: unknown}, 0.0)[TURNS]
    assert {name: len(costs) for name, costs in found.items()} == {"known": 1}, "one turn, as there is no more time"
    trials.run(RIVAL, DEFAULT, ABOUT, 60.0)
    assert not trials.run(RIVALS, {}, {"batch_size": 2, RIVALS: rivals}, 0.0)[TURNS], "none was tried at that size"


def test_a_chain_of_segments_takes_turns_as_a_rival(trials: Trials) -> None:
    """The configuration that serves may be a chain, and its segments are a list of lists."""
    rivals = {"chain": {**DEFAULT, "segments": [[CONTIGUOUS, "neck"], [PACKED, "output"]]}, "uniform": DEFAULT}
    for config in rivals.values():
        trials.run(RIVAL, config, ABOUT, 0.0)
    assert trials.run(RIVALS, {}, {**ABOUT, RIVALS: rivals}, 0.0)[TURNS].keys() == rivals.keys()


def test_rivals_that_need_too_much_memory_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials_module, "MAX_BYTES_OF_RIVALS", 1000)
    trials = Trials(ModelSpec("shapes", device="cpu"))
    assert trials.run(RIVAL, DEFAULT, ABOUT, 60.0)["costs"]
    assert not trials.run(RIVALS, {}, {**ABOUT, RIVALS: {"one": DEFAULT}}, 60.0)[TURNS]


def test_a_chain_takes_turns_with_the_uniform_form(trials: Trials) -> None:
    middle = trials.model(ExecutionConfig()).split_points[1].name
    chain = {**DEFAULT, "segments": [[CONTIGUOUS, middle], [PACKED, "output"]]}
    answer = trials.run(CHAIN, chain, {**ABOUT, UNIFORM: DEFAULT}, 60.0)
    assert len(answer["costs"]) == len(answer[UNIFORM]) == turns.MAX_TURNS
    assert min(answer["costs"] + answer[UNIFORM]) > 0
    assert 0 <= answer["difference"] < 1e-4
    assert len(trials.run(CHAIN, chain, {**ABOUT, UNIFORM: DEFAULT}, 0.0)["costs"]) == 1, "there is no more time"


def test_a_pipeline_is_timed(trials: Trials) -> None:
    config = {**pipeline_space(trials.model(ExecutionConfig()), 1).default, "batch_size": 2}
    answer = trials.run(PIPELINE, config, {"form": {**DEFAULT, "convolutions": CONTIGUOUS}}, 0.0)
    assert answer["costs"]
    assert min(answer["costs"]) > 0


def test_a_worker_serves_in_a_process_of_its_own() -> None:
    reader, writer = os.pipe()
    requests = [
        {"stage": NETWORK, "config": DEFAULT, "about": ABOUT, "limit_s": 60},
        {"stage": NETWORK, "config": {**DEFAULT, "convolutions": "?"}, "about": {}, "limit_s": 60},
    ]
    model = {"name": "shapes", "weights": "none", "device": "cpu", "allow_user_code": False}
    subprocess.run(
        [sys.executable, "-m", "split_infer_ros.autotuning.worker", str(writer), json.dumps(model)],
        input="".join(json.dumps(request) + "\n" for request in requests).encode(),
        pass_fds=(writer,),
        env={"PYTHONPATH": str(Path(split_infer_ros.__file__).parents[1]), "_ROS_WHEELS_BOOTSTRAP_COMPLETE": "1"},
        timeout=100,
        check=True,
    )
    os.close(writer)
    with os.fdopen(reader) as answers:
        ready, done, failed = (json.loads(line) for line in answers)
    assert ready == {"ready": True}
    assert done["costs"]
    assert failed == {"error": "KeyError: 'batch_size'"}


def test_features_tell_kinds_of_networks_apart(trials: Trials) -> None:
    model = trials.model(ExecutionConfig())
    features = model_features(model)
    assert features["parameters"] > 3
    assert 0 <= features["depthwise"] <= 1
    assert 0 <= features["pointwise"] <= 1
