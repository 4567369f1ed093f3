"""Forms that are compiled for a GPU, and trials of them in processes of their own."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace

import pytest
import torch
from real_gpu import GPU

from split_infer_ros.autotuning.spaces import (
    CHAIN,
    CONVERSION,
    LAYOUTS,
    NETWORK,
    PIPELINE,
    SEGMENTS,
    UNIFORM,
    WORK,
    network_space,
    pipeline_space,
)
from split_infer_ros.autotuning.trial_process import TrialProcess
from split_infer_ros.engines.execution_config import Compiler, Convolutions, ExecutionConfig
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec

NAME = "squeezenet1_0"
SPEC = ModelSpec(NAME, "random", str(GPU))
LIMIT_S = 60.0
DEFAULT = network_space(1, device="cuda", compilers=False).default


@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="torch.compile needs a C++ compiler")
def test_a_compiled_form_gives_what_the_eager_one_gives() -> None:
    images = torch.randn(3, 3, 224, 224, device=GPU)
    expected = load_model(SPEC).backbone("features.9")
    found = load_model(replace(SPEC, execution_config=ExecutionConfig(compiler=Compiler.INDUCTOR))).backbone(
        "features.9"
    )
    with torch.inference_mode():
        for count in (3, 1, 2):  # the third shape is run as it is
            for mine, other in zip(found(images[:count]), expected(images[:count]), strict=True):
                assert other.std() > 0
                # The same sums in another order, in float32.
                assert (mine - other).abs().max() <= 1e-3 * other.abs().max()


def test_a_network_is_tried_in_a_process_of_its_own() -> None:
    with TrialProcess(SPEC) as trials:
        found = trials.run(NETWORK, dict(DEFAULT), {"batch_size": 2}, LIMIT_S)
    assert found.error is None
    assert all(0 < seconds < 1 for seconds in found.costs)
    assert 0 <= found.facts["difference"] <= 5e-3  # float32 may be rounded to TF32 there


def test_segments_are_tried() -> None:
    split_points = load_model(SPEC).split_points
    with TrialProcess(SPEC) as trials:
        found = trials.run(SEGMENTS, {**DEFAULT, "convolutions": Convolutions.PACKED.value}, {"batch_size": 2}, LIMIT_S)
    assert found.error is None
    for part in (WORK, CONVERSION, LAYOUTS):
        assert len(found.facts[part]) == len(split_points) - 1
    assert all(0 < min(each["costs"]) < 0.1 for each in found.facts[WORK])


def test_a_chain_is_tried_in_turns() -> None:
    middle = load_model(SPEC).split_points[3].name
    chain = {**DEFAULT, "segments": [[Convolutions.CONTIGUOUS.value, middle], [Convolutions.PACKED.value, "output"]]}
    with TrialProcess(SPEC) as trials:
        found = trials.run(CHAIN, chain, {"batch_size": 2, UNIFORM: dict(DEFAULT)}, LIMIT_S)
    assert found.error is None
    assert len(found.costs) == len(found.facts[UNIFORM]) > 5
    assert 0 <= found.facts["difference"] <= 5e-3


def test_a_pipeline_is_tried_with_and_without_graphs() -> None:
    space = pipeline_space(load_model(SPEC), 1)
    about = {"form": {**DEFAULT}}
    with TrialProcess(SPEC) as trials:
        for graphs in (True, False):
            found = trials.run(PIPELINE, {**space.default, "batch_size": 2, "cuda_graphs": graphs}, about, LIMIT_S)
            assert found.error is None
            assert math.isfinite(min(found.costs))


def test_a_trial_that_is_lost_leaves_the_gpu_alone() -> None:
    with TrialProcess(SPEC) as trials:
        assert trials.run(NETWORK, dict(DEFAULT), {"batch_size": 2}, 1e-3).error is not None
        assert trials.run(NETWORK, dict(DEFAULT), {"batch_size": 2}, LIMIT_S).error is None
    assert torch.ones(1, device=GPU).item() == 1
