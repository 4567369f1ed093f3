"""Several models as one execution, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from measured_costs import measure_costs
from torch import Tensor

from split_infer_ros.engines.engine import Engine
from split_infer_ros.runtime.num_threads import engine_threads
from split_infer_ros.server.execution.merge_runner import MergeRunner
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec

NAMES = {"shapes": "shapes", "squeeze": "squeezenet1_0", "again": "shapes"}


@pytest.fixture(scope="module")
def models() -> dict[str, SplitModel]:
    return {name: load_model(ModelSpec(model, "random", "cpu")) for name, model in NAMES.items()}


@pytest.fixture
def runner(models: dict[str, SplitModel]) -> Iterator[MergeRunner]:
    runner = MergeRunner(torch.device("cpu"))
    backbones = {name: model.backbone("output") for name, model in models.items()}
    runner.load(backbones, {"shapes": 1.0, "squeeze": 5.0, "again": 1.0})
    yield runner
    runner.close()


@pytest.mark.parametrize("names", [["squeeze"], ["shapes", "squeeze"], ["shapes", "squeeze", "again"]])
def test_fused_models_give_what_each_gives_alone(
    models: dict[str, SplitModel], runner: MergeRunner, names: list[str]
) -> None:
    inputs = {name: torch.rand_like(models[name].blank_images(2)) for name in names}
    outputs = runner.run(inputs)
    assert sorted(outputs) == sorted(names)
    for name in names:
        with torch.inference_mode():
            expected = models[name].backbone("output")(inputs[name])
        for actual, value in zip(outputs[name], expected, strict=True):
            torch.testing.assert_close(actual, value, rtol=1e-4, atol=1e-5)  # with another number of threads


def test_what_computes_gets_the_backbone_and_its_images(models: dict[str, SplitModel], runner: MergeRunner) -> None:
    inputs = {name: models[name].blank_images(2) for name in ("shapes", "squeeze")}
    computed: dict[str, tuple[object, Tensor]] = {}

    def compute(name: str, backbone: object, images: Tensor) -> None:
        if name == "squeeze":
            raise ArithmeticError("no result")
        computed[name] = backbone, images

    launched = runner.launch(inputs, lambda name, features: pytest.fail("stored twice"), (), compute)
    launched.done.wait()
    assert {name: str(error) for name, error in launched.failed.items()} == {"squeeze": "no result"}
    backbone, images = computed["shapes"]
    assert backbone is models["shapes"].backbone("output")
    assert images is inputs["shapes"]


def test_failing_model_raises_once_the_others_are_done(models: dict[str, SplitModel], runner: MergeRunner) -> None:
    inputs = {"shapes": models["shapes"].blank_images(1), "squeeze": torch.zeros(1, 5, 8, 8)}
    with pytest.raises(RuntimeError):
        runner.run(inputs)
    assert set(runner.run({name: models[name].blank_images(1) for name in NAMES})) == set(NAMES)


def test_batches_and_fused_models_are_timed(models: dict[str, SplitModel], runner: MergeRunner) -> None:
    costs = measure_costs(models, runner, sizes=(1, 2), rounds=1)
    assert costs.parameters["squeeze"] == models["squeeze"].network.num_parameters() > costs.parameters["shapes"]
    assert {name: sorted(seconds) for name, seconds in costs.alone_s.items()} == {name: [1, 2] for name in NAMES}
    assert set(costs.fused_s) == {(("again", 1), ("shapes", 1)), (("again", 2), ("shapes", 2))}


def test_torch_computes_alone_where_an_engine_runs_the_model() -> None:
    """One thread runs a model of torch and one of an engine in turns."""
    seen: dict[str, tuple[int, int]] = {}

    def note(name: str, images: Tensor) -> list[Tensor]:
        seen[name] = torch.get_num_threads(), engine_threads()
        return [images]

    for num_threads in (2, 1):
        runner = MergeRunner(torch.device("cpu"), num_threads=num_threads)
        names = ("plain", "engine")
        runner.load(
            {name: partial(note, name) for name in names},
            dict.fromkeys(names, 1.0),
            {"plain": Engine.TORCH, "engine": Engine.ONNXRUNTIME},
        )
        with ThreadPoolExecutor(1) as thread:
            for name in names * 2:
                thread.submit(runner.run, {name: torch.zeros(1, 3, 2, 2)}).result()
                assert seen == {name: (num_threads if name == "plain" else 1, num_threads)}
                seen.clear()
        runner.close()
