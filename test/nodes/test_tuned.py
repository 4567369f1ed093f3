"""The backbone uses what tuning found when it is configured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from rclpy.context import Context
from rclpy.parameter import Parameter

from split_infer_ros.autotuning import opening
from split_infer_ros.autotuning.spaces import network_space, pipeline_space
from split_infer_ros.autotuning.tasks import network_task, pipeline_task
from split_infer_ros.engines.execution_config import Convolutions
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.nodes import backbone_pipeline
from split_infer_ros.nodes.backbone import BackboneNode
from split_infer_ros.nodes.head import HeadNode
from split_infer_ros.nodes.managed import start_nodes
from split_infer_ros.nodes.tenants import TenantsNode
from split_infer_ros.runtime import num_threads as threads_module
from split_infer_ros.server.auto_split import AutoSplit
from split_infer_ros.server.backbone_stage import BackboneStage
from split_infer_ros.server.improving.improve import Improve
from split_infer_ros.server.improving.improver import Improver
from split_infer_ros.server.improving.rivals_in_turn import RivalsInTurn
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.split_chooser import FilledIn
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.planner import Goal
from split_infer_ros.telemetry.machine import num_cores

TENANT = {"tenants": ["front"], "tenant.front.model": "shapes", "tenant.front.weights": "none"}
PLACE: dict[str, Any] = {"split_point": "neck", "batch_size": 2, "backbone_threads": 1}


def found_for(model: SplitModel, precision: Precision) -> list[Record]:
    """Returns records of a network, and of a pipeline with the split point and batch size of ``PLACE``."""
    key, network = Key.here("cpu"), dict(network_space(num_cores(), (precision,)).default)
    place = {**pipeline_space(model, num_cores()).default, **PLACE}
    measured = (network_task(model, 1), network), (pipeline_task(model, network), place)
    return [Record(key.target, key.versions_for(task), task, config, (1.0,)) for task, config in measured]


Node = TypeVar("Node", BackboneNode, TenantsNode)


@contextmanager
def configured(kind: type[Node], context: Context, **values: Any) -> Iterator[Node]:
    """Configures a node on the CPU, and closes it after the block."""
    overrides = [Parameter(name, value=value) for name, value in {"device": "cpu", **values}.items()]
    node = kind(context=context, use_global_arguments=False, parameter_overrides=overrides)
    try:
        node.trigger_configure()
        yield node
    finally:
        node.close()


def configure(context: Context, **values: Any) -> None:
    """Configures a backbone's node and closes it."""
    with configured(BackboneNode, context, **{"weights": "none", "engine": "torch", **values}) as node:
        assert node.stage.settings.split_point


@pytest.mark.parametrize("improve", [each.value for each in Improve])
@pytest.mark.parametrize("chosen", [{}, {"engine": "torch"}, {"split_point": "auto"}], ids=str)
def test_engines_are_compared_when_the_user_wants_it(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, improve: str, chosen: dict[str, str]
) -> None:
    """A named engine needs no comparison. In the background, split points follow the engines."""
    before_start: list[Precision] = []
    served: list[object] = []
    engines: list[int] = []
    make_stage = backbone_pipeline.BackboneStage

    def stage(*args: Any, rivals: object, **options: Any) -> BackboneStage:
        served.append(rivals)
        return make_stage(*args, rivals=rivals, **options)

    def compare(*_: object, precision: Precision, **__: object) -> None:
        before_start.append(precision)

    monkeypatch.setattr(opening, "compare_engines_once", compare)
    monkeypatch.setattr(opening, "EngineRivals", lambda trials, database: engines.append(trials.batch_size))
    monkeypatch.setattr(backbone_pipeline, "BackboneStage", stage)
    if "split_point" in chosen:  # nothing is measured here
        monkeypatch.setattr(AutoSplit, "begin", lambda _, asked, goal: replace(asked, split_point="neck", batch_size=1))
    values = {"tuning_database": str(tmp_path / "tuning.jsonl"), "precision": "bf16", "improve": improve}
    configure(context, **{"engine": "auto", **values, **chosen})
    is_open = "engine" not in chosen
    assert before_start == ([Precision.BF16] if is_open and improve == "before_start" else [])
    assert engines == ([1] if is_open and improve == "background" else [])
    assert isinstance(served[0], RivalsInTurn) is (improve == "background")


@pytest.mark.parametrize("improve", [each.value for each in Improve])
@pytest.mark.parametrize("chosen", [{}, {"engine": "torch"}, {"split_point": "auto"}], ids=str)
def test_engines_of_tenants_are_compared_when_the_user_wants_it(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, improve: str, chosen: dict[str, str]
) -> None:
    before_start: list[int] = []
    served: list[str] = []
    engines: list[int] = []
    monkeypatch.setattr(opening, "compare_engines_once", lambda *_, batch_size, **__: before_start.append(batch_size))
    monkeypatch.setattr(opening, "EngineRivals", lambda trials, database: engines.append(trials.batch_size))
    monkeypatch.setattr(Improver, "add", lambda _, model, rivals: served.append(model.key))
    if "split_point" in chosen:  # nothing is measured here
        asked = {"split_point": "neck", "batch_size": 1}
        monkeypatch.setattr(AutoSplit, "fill_in", lambda _, wanted, *__, **___: FilledIn(replace(wanted, **asked), ()))
    values = {"tuning_database": str(tmp_path / "tuning.jsonl"), "improve": improve, **chosen}
    with configured(TenantsNode, context, **TENANT, **values):
        pass
    is_open = "engine" not in chosen
    assert before_start == ([1] if is_open and improve == "before_start" else [])
    assert engines == ([1] if is_open and improve == "background" else [])
    assert served == (["shapes with weights none"] if improve == "background" else [])


def test_a_batch_size_that_was_not_compared_is_compared_unless_the_model_was_tuned(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []

    def compare(*_: object, batch_size: int, **__: object) -> None:
        compared.append(batch_size)

    monkeypatch.setattr(opening, "compare_engines_once", compare)
    path = tmp_path / "tuning.jsonl"
    network, pipeline = found_for(load_model(ModelSpec("shapes", "none", "cpu")), Precision.FP32)
    for record in (network, pipeline):
        Database(path).add([record])
        configure(context, tuning_database=str(path), engine="auto", batch_size=8, improve="before_start")
    assert compared == [8]


def test_head_of_the_process_follows_what_its_backbone_measured(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backbone compares engines while it is configured, so the head is configured after it."""

    def compare(model: SplitModel, spec: ModelSpec, database: Database, **_: object) -> None:
        network = {**network_space(num_cores()).default, "convolutions": Convolutions.CONTIGUOUS.value}
        database.add([Key.here("cpu").record(network_task(model, 1), network, (1.0,), time=0.0)])

    monkeypatch.setattr(opening, "compare_engines_once", compare)
    values = {"weights": "none", "tuning_database": str(tmp_path / "tuning.jsonl")}
    states: list[str] = []
    head, backbone = (
        kind(
            context=context,
            namespace="/follows",
            use_global_arguments=False,
            parameter_overrides=[Parameter(name, value=value) for name, value in {**values, **more}.items()],
        )
        for kind, more in ((HeadNode, {}), (BackboneNode, {"device": "cpu", "improve": "before_start"}))
    )
    for node in (head, backbone):
        activate = node.activate
        monkeypatch.setattr(node, "activate", lambda node=node, go=activate: (states.append(node.get_name()), go()))
    try:
        start_nodes([head, backbone])
        assert states == ["head", "backbone"], "receivers before senders"
        assert head.model.execution_config.convolutions is Convolutions.CONTIGUOUS
        assert head.model.execution_config == backbone.model.execution_config
    finally:
        backbone.close()
        head.close()


def test_a_node_that_does_not_start_by_itself_is_left_alone(context: Context) -> None:
    overrides = [Parameter("autostart", value=False)]
    node = HeadNode(context=context, use_global_arguments=False, parameter_overrides=overrides)
    try:
        start_nodes([node])
        with pytest.raises(ConfigurationError, match="not configured"):
            _ = node.model
        assert not node.is_active
    finally:
        node.close()


@pytest.mark.parametrize(
    ("values", "split_point", "num_threads"),
    [
        ({"max_batch_size": 2}, "neck", 1),
        ({"max_batch_size": 2, "split_point": "neck"}, "neck", 1),
        ({"max_batch_size": 2, "split_point": "output"}, "output", 0),
        ({"max_batch_size": 4}, "neck", 0),
    ],
    ids=str,
)
def test_tenants_start_with_what_tuning_found(
    context: Context,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, Any],
    split_point: str,
    num_threads: int,
) -> None:
    monkeypatch.setattr(threads_module, "max_threads", num_cores)  # so that one thread is not all there are
    path = tmp_path / "tuning.jsonl"
    Database(path).add(found_for(load_model(ModelSpec("shapes", "none", "cpu")), Precision.FP32))
    values = {"engine": "torch", "tuning_database": str(path), **values}
    with configured(TenantsNode, context, **TENANT, **values) as node:
        (served,) = node.pipeline.view.models.values()
        assert (served.plan.split_point.name, served.plan.model.execution_config.threads) == (split_point, num_threads)
        node.pipeline.configure(replace(node.pipeline.settings, split_point="input"))
        node.pipeline.configure(replace(node.pipeline.settings, split_point="default"))
        assert served.plan.split_point.name == "neck"


def test_tuned_cores_need_the_tuned_split_and_batch(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    class Stage(BackboneStage):
        def __init__(self, model: SplitModel, *arguments: Any, **more: Any) -> None:
            taken.append(model.execution_config.threads)
            super().__init__(model, *arguments, **more)

    def begin(split: AutoSplit, wanted: StageSettings, goal: Goal) -> StageSettings:
        return replace(wanted, split_point=PLACE["split_point"], batch_size=PLACE["batch_size"])

    monkeypatch.setattr(backbone_pipeline, "BackboneStage", Stage)
    monkeypatch.setattr(threads_module, "max_threads", num_cores)  # so that one thread is not all there are
    path = tmp_path / "tuning.jsonl"
    Database(path).add(found_for(load_model(ModelSpec("shapes", "none", "cpu")), Precision.FP32))
    for values in ({}, {"split_point": "neck", "batch_size": 2}, {"split_point": "neck"}, {"batch_size": 4}):
        configure(context, tuning_database=str(path), **values)
    monkeypatch.setattr(AutoSplit, "begin", begin)
    configure(context, tuning_database=str(path), split_point="auto")
    assert taken == [1, 1, 0, 0, 0]
