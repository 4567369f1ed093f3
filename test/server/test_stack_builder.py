"""Which models become one network, and when that is built and released."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from brightness_models import CPU, BrightModel, Brightness

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import Compiler, Convolutions, ExecutionConfig
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.server import stack_builder
from split_infer_ros.server.stack_builder import MAX_MEMBERS, StackBuilder, groups_of
from split_infer_ros.split import stacked_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.stacked_model import StackedModel
from split_infer_ros.split.torch_network import TorchNetwork

BRIGHT = BrightModel("bright")


def plain(idle: int = 1, config: ExecutionConfig | None = None) -> SplitModel:
    """A model that is no subclass of ``SplitModel``."""
    return SplitModel(TorchNetwork(BRIGHT.entry, Brightness(idle)), CPU, config)


def served(model: SplitModel, split_point: str = "parts.0", streamed: object = None) -> Any:
    plan = SimpleNamespace(model=model, split_point=model.split_point(split_point), streamed=streamed)
    return SimpleNamespace(plan=plan, is_contested=False)


class Models:
    """Takes stacks."""

    def __init__(self, **models: Any) -> None:
        self.by_key = models
        self.stacks: dict[str, StackedModel] = {}

    def use_stacks(self, stacks: Sequence[StackedModel]) -> None:
        self.stacks = {stack.name: stack for stack in stacks}


class Table:
    """Knows of stacks what it is told."""

    pays: bool | None = None

    def stack_pays(self, members: Sequence[str]) -> bool | None:
        return self.pays


class Bench:
    def __init__(self, **models: Any) -> None:
        self.models, self.table = Models(**models), Table()
        self.errors: list[tuple[str, str]] = []
        self.builder = StackBuilder(
            threading.Condition(),
            self.models,  # type: ignore[arg-type]
            self.table,  # type: ignore[arg-type]
            lambda name, error: self.errors.append((name, str(error))),
        )

    def build(self) -> list[str]:
        self.builder.build()
        return list(self.models.stacks)


def test_models_of_one_architecture_and_split_point_are_grouped() -> None:
    models = {
        "a": served(plain()),
        "other": served(plain(idle=5)),
        "b": served(plain()),
        "elsewhere": served(plain(), "output"),
        "c": served(plain()),
    }
    ((members, split_point),) = groups_of(models)
    assert (list(members), split_point) == (["a", "b", "c"], "parts.0")


def test_model_with_several_keys_is_in_a_stack_once() -> None:
    model, other = plain(), plain()
    assert groups_of({"a": served(model), "b": served(model)}) == []
    ((members, _),) = groups_of({"a": served(model), "b": served(model), "c": served(other)})
    assert list(members) == ["a", "c"]


def test_many_models_have_several_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    models = {f"m{number}": served(plain()) for number in range(2 * MAX_MEMBERS + 1)}
    assert [len(members) for members, _ in groups_of(models)] == [MAX_MEMBERS, MAX_MEMBERS]
    parameters = BRIGHT.network.num_parameters("parts.0")
    monkeypatch.setattr(stack_builder, "MAX_PARAMETERS", 3 * parameters)
    assert [len(members) for members, _ in groups_of(models)] == [3, 3, 3]
    monkeypatch.setattr(stack_builder, "MAX_PARAMETERS", 2 * parameters - 1)
    assert groups_of(models) == []


@pytest.mark.parametrize(
    "config",
    [
        ExecutionConfig(engine=Engine.OPENVINO),
        ExecutionConfig(compiler=Compiler.INDUCTOR),
        ExecutionConfig(segments=((Convolutions.BLOCKED, "output"),)),
    ],
)
def test_what_only_runs_alone_is_in_no_group(config: ExecutionConfig) -> None:
    assert groups_of({name: served(plain().placed(CPU, config)) for name in "ab"}) == []
    assert groups_of({name: served(plain(), streamed=object()) for name in "ab"}) == []
    assert groups_of({name: served(plain(), "input") for name in "ab"}) == [], "nothing is computed"
    subclassed = {name: served(BrightModel(name)) for name in "ab"}
    assert groups_of(subclassed) == [], "a subclass may compute something else"


def test_stacks_follow_the_models() -> None:
    bench = Bench(a=served(plain()), b=served(plain()))
    assert bench.build() == ["a + b"]
    first = bench.models.stacks["a + b"]
    assert bench.build() == ["a + b"]
    assert bench.models.stacks["a + b"] is first, "it is not built again"
    bench.models.by_key["b"] = served(plain())
    bench.build()
    assert bench.models.stacks["a + b"] is not first, "the weights are others"
    bench.models.by_key["c"] = served(plain())
    assert bench.build() == ["a + b + c"]
    del bench.models.by_key["a"], bench.models.by_key["b"]
    assert bench.build() == []
    assert bench.errors == []


def test_stack_that_does_not_pay_is_not_built() -> None:
    bench = Bench(a=served(plain()), b=served(plain()))
    bench.table.pays = False
    assert bench.build() == []
    bench.table.pays = True
    assert bench.build() == ["a + b"]


@pytest.mark.parametrize("error", [ConfigurationError("They differ."), RuntimeError("no memory")])
def test_network_that_cannot_be_made_is_reported_once(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(members: object, split_point: str) -> StackedModel:
        raise error

    monkeypatch.setattr(stacked_model, "StackedModel", refuse)
    bench = Bench(a=served(plain()), b=served(plain()))
    assert bench.build() == bench.build() == []
    ((name, reason),) = bench.errors
    assert name == "a + b"
    assert reason.startswith("The models are not computed as one network: ")
    assert str(error).rstrip(".") in reason


def test_lost_device_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(members: object, split_point: str) -> StackedModel:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(stacked_model, "StackedModel", lose)
    bench = Bench(a=served(plain()), b=served(plain()))
    assert bench.build() == []
    assert bench.errors == [("a + b", "CUDA error: an illegal memory access was encountered")]
