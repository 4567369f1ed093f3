"""Several models as one execution, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from split_infer_ros.serving.execution_timing import blank, measure
from split_infer_ros.serving.merge_runner import Engine
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec

NAMES = {"shapes": "shapes", "squeeze": "squeezenet1_0", "again": "shapes"}


@pytest.fixture(scope="module")
def models() -> dict[str, SplitModel]:
    return {name: load_model(ModelSpec(model, "random", "cpu")) for name, model in NAMES.items()}


@pytest.fixture
def engine(models: dict[str, SplitModel]) -> Iterator[Engine]:
    engine = Engine(torch.device("cpu"))
    backbones = {name: model.backbone("output") for name, model in models.items()}
    engine.load(backbones, {"shapes": 1.0, "squeeze": 5.0, "again": 1.0})
    yield engine
    engine.close()


@pytest.mark.parametrize("names", [["squeeze"], ["shapes", "squeeze"], ["shapes", "squeeze", "again"]])
def test_models_that_run_as_one_give_what_each_gives_alone(
    models: dict[str, SplitModel], engine: Engine, names: list[str]
) -> None:
    inputs = {name: torch.rand_like(blank(models[name], 2)) for name in names}
    found = engine.run(inputs)
    assert sorted(found) == sorted(names)
    for name in names:
        with torch.inference_mode():
            expected = models[name].backbone("output")(inputs[name])
        for mine, other in zip(found[name], expected, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)  # with another number of threads


def test_a_model_that_fails_does_so_once_the_others_are_done(models: dict[str, SplitModel], engine: Engine) -> None:
    inputs = {"shapes": blank(models["shapes"], 1), "squeeze": torch.zeros(1, 5, 8, 8)}
    with pytest.raises(RuntimeError):
        engine.run(inputs)
    assert set(engine.run({name: blank(models[name], 1) for name in NAMES})) == set(NAMES)


def test_all_that_the_scheduler_asks_for_is_measured(models: dict[str, SplitModel], engine: Engine) -> None:
    costs = measure(models, engine, sizes=(1, 2), rounds=1)
    assert costs.parameters["squeeze"] == models["squeeze"].parameters > costs.parameters["shapes"]
    assert {name: sorted(seconds) for name, seconds in costs.alone_s.items()} == {name: [1, 2] for name in NAMES}
    assert set(costs.fused_s) == {(("again", 1), ("shapes", 1)), (("again", 2), ("shapes", 2))}
