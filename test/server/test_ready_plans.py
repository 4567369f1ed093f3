"""Both partitions are ready before a changed split point or batch size takes effect. No frame waits for them."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from brightness_models import LONG_S
from two_stages import RecordingHead

from split_infer_ros.engines.compiled_blobs import CompiledBlob
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import RGB, Pixels
from split_infer_ros.server import plan_changer
from split_infer_ros.server.backbone_stage import BackboneStage
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.server.local_transport import LocalTransport
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.sources import draw_scene
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec

SETTINGS = StageSettings(split_point="block3", drop_policy=DropPolicy.BLOCK)
CHANGES = [{"split_point": "block5"}, {"batch_size": 4}, {"split_point": "block1", "batch_size": 3}]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_no_frame_waits_for_openvino_to_compile(monkeypatch: pytest.MonkeyPatch, change: dict[str, object]) -> None:
    part = pytest.importorskip("split_infer_ros.engines.openvino_part")
    pytest.importorskip("openvino")
    compiled: list[object] = []

    def record(*model: object) -> CompiledBlob:
        compiled.append(model)
        return CompiledBlob(*model)  # type: ignore[arg-type]

    monkeypatch.setattr(part, "CompiledBlob", record)
    model = load_model(ModelSpec("shapes", execution_config=ExecutionConfig(engine=Engine.OPENVINO)))
    picture = Pixels(draw_scene(seed=1, index=0).image, RGB)
    with LocalPipeline(model, SETTINGS) as pipeline:
        pipeline.feed([picture])
        pipeline.finish()
        settings = replace(SETTINGS, **change)  # type: ignore[arg-type]
        before = len(compiled)
        pipeline.backbone.configure(settings)
        made_ready = len(compiled)
        pipeline.feed([picture] * settings.batch_size)
        pipeline.finish()
    assert made_ready > before
    assert len(compiled) == made_ready


def stage_of(head: RecordingHead) -> BackboneStage:
    model = load_model(ModelSpec("shapes", "none"))
    return BackboneStage(model, SETTINGS, LocalTransport(head), on_error=lambda error: None)


def test_head_is_told_of_each_split_point_before_it_is_used() -> None:
    head = RecordingHead()
    stage = stage_of(head)
    try:
        stage.start()
        assert head.prepared == [("shapes", "block3", 1)]
        stage.configure(replace(SETTINGS, split_point="block5", batch_size=2))
        assert head.prepared[1:] == [("shapes", "block5", 2)]
    finally:
        stage.stop(LONG_S)
        stage.close()


@pytest.mark.parametrize("error", [ConfigurationError("No head for block5."), OSError("No head for block5.")], ids=repr)
def test_change_that_the_head_cannot_run_is_refused(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    head = RecordingHead()
    stage = stage_of(head)

    def refuse(model: str, split_point: str, batch_size: int) -> None:
        raise error

    stage.start()
    monkeypatch.setattr(head, "prepare", refuse)
    try:
        with pytest.raises(ConfigurationError, match="No head for block5"):
            stage.configure(replace(SETTINGS, split_point="block5"))
        assert stage.settings == SETTINGS
    finally:
        stage.stop(LONG_S)
        stage.close()


def test_change_whose_first_batch_fails_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = stage_of(RecordingHead())
    stage.start()
    failed = threading.Event()

    def fail(self: Plan, *_: object) -> None:
        failed.set()
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(plan_changer, "EnginePart", object)  # torch's partitions run no blank batches
    monkeypatch.setattr(Plan, "warm_up", fail)
    try:
        with pytest.raises(ConfigurationError, match=r"cannot run a batch of 1 up to block5 \(.*no such kernel.*\)"):
            stage.configure(replace(SETTINGS, split_point="block5"))
        assert failed.is_set()
        assert stage.settings == SETTINGS
    finally:
        stage.stop(LONG_S)
        stage.close()
