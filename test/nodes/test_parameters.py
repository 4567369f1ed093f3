"""Parameters change while frames flow. A refused change has no effect."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.msg import Log
from rclpy.context import Context
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile
from ros_pipeline import NODE_TYPES, Pipeline
from ros_support import START_S, Received, image, wait_until
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.msg import FeatureHandle, PipelineReport
from split_infer_ros.nodes.backbone import BackboneNode
from split_infer_ros.nodes.camera import CameraParameters
from split_infer_ros.nodes.head import HeadParameters
from split_infer_ros.nodes.parameters.backbone import BackboneParameters
from split_infer_ros.nodes.parameters.declaration import Parameters, refuse_unknown
from split_infer_ros.nodes.parameters.table import Rows
from split_infer_ros.nodes.stats import StatsParameters
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.setting import settings_of
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.planner import Goal

TABLES = {
    "backbone": BackboneParameters,
    "head": HeadParameters,
    "camera": CameraParameters,
    "stats": StatsParameters,
}
pytestmark = pytest.mark.timeout(4 * START_S)


@pytest.fixture(scope="module")
def pipeline(context: Context, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    camera = {"width": 64, "height": 48, "rate_hz": 20.0}
    backbone = {"tuning_database": str(tmp_path_factory.mktemp("tuning") / "none.jsonl")}
    with Pipeline(context, stats={}, head={"score_threshold": 0.0}, backbone=backbone, camera=camera) as found:
        yield found


@pytest.fixture(scope="module")
def detections(pipeline: Pipeline) -> Received:
    return pipeline.client.subscribe(Detection2DArray, "detections")


@pytest.fixture(scope="module")
def reports(pipeline: Pipeline) -> Received:
    return pipeline.client.subscribe(PipelineReport, "report")


def flows_on(pipeline: Pipeline, detections: Received) -> None:
    """Asserts that detections still come, and that the ledger closes."""
    count = len(detections)
    detections.wait_for(count + 3)
    assert pipeline.counts.balanced


@pytest.mark.parametrize("node", TABLES)
def test_descriptor_has_description_and_range(pipeline: Pipeline, node: str) -> None:
    rows = Rows(TABLES[node]).flat(TABLES[node]())
    descriptors = pipeline.client.describe(node, *rows)
    for name, descriptor in zip(rows, descriptors, strict=True):
        facts = rows[name][0].setting
        assert descriptor.name == name
        assert descriptor.description == facts.description
        assert descriptor.read_only == facts.read_only
        ranges = [*descriptor.integer_range, *descriptor.floating_point_range]
        assert [(r.from_value, r.to_value) for r in ranges] == (
            [(facts.minimum, facts.maximum)] if facts.maximum is not None else []
        )
        for choice in facts.choices:
            assert choice in descriptor.additional_constraints


def test_every_setting_of_a_stage_is_a_parameter() -> None:
    for dataclass in (StageSettings, Goal, ModelSpec):
        for name, found in settings_of(dataclass).items():
            row = Rows(BackboneParameters).row(found.of_users(name)[0])
            assert row is not None, name
            assert row.path[-1] == name


def test_split_point_changes_while_frames_flow(pipeline: Pipeline, detections: Received, reports: Received) -> None:
    handles = pipeline.client.subscribe(FeatureHandle, "features")
    for name in ("input", "block3", "output", "neck"):
        assert pipeline.client.set("backbone", split_point=name) == [""]
        assert pipeline.client.get("backbone", "split_point") == name
        handles.wait_for_one(lambda handle, name=name: handle.split_point == name, f"a handle cut at {name}")
        reports.wait_for_one(lambda report, name=name: report.split_point == name, f"a report that says {name}")
        flows_on(pipeline, detections)


def test_batches_change_while_frames_flow(pipeline: Pipeline, detections: Received, reports: Received) -> None:
    handles = pipeline.client.subscribe(FeatureHandle, "features")
    assert pipeline.client.set("backbone", batch_size=3, batch_timeout_ms=5000.0, pool_slots=2) == ["", "", ""]
    handles.wait_for_one(lambda handle: len(handle.headers) == 3, "a batch of three")
    report = reports.wait_for_one(lambda report: report.batch_size == 3, "a report that says so")
    assert (report.batch_timeout_ms, report.pool_slots) == (5000.0, 2)
    flows_on(pipeline, detections)
    assert pipeline.client.set("backbone", batch_size=1, batch_timeout_ms=50.0) == ["", ""]
    flows_on(pipeline, detections)


def test_each_change_of_the_split_is_one_line_of_the_log(pipeline: Pipeline, detections: Received) -> None:
    latched = QoSProfile(depth=100, durability=DurabilityPolicy.TRANSIENT_LOCAL)  # no line is missed
    log = pipeline.client.subscribe(Log, "/rosout", latched)
    assert pipeline.client.set_all("backbone", split_point="block3", batch_size=2, batch_timeout_ms=10.0) == ""
    assert pipeline.client.set_all("backbone", batch_size=1, max_rate_hz=500.0) == ""
    assert pipeline.client.set_all("backbone", split_point="neck", batch_timeout_ms=50.0, max_rate_hz=0.0) == ""
    last = log.wait_for_one(lambda entry: "from block3 to neck" in entry.msg, "the last change")
    lines = [entry for entry in log if "changes from" in entry.msg and entry.name == last.name][-3:]
    assert [entry.msg for entry in lines] == [
        "split_point changes from neck to block3, batch_size changes from 1 to 2.",
        "batch_size changes from 2 to 1.",
        "split_point changes from block3 to neck.",
    ]
    assert {entry.level for entry in lines} == {20}, "info"
    flows_on(pipeline, detections)


def test_drop_policy_changes_while_frames_flow(pipeline: Pipeline, detections: Received, reports: Received) -> None:
    for policy in ("block", "latest"):
        assert pipeline.client.set("backbone", drop_policy=policy) == [""]
        reports.clear()
        reports.wait_for_one(lambda report, policy=policy: report.drop_policy == policy, f"a report that says {policy}")
        flows_on(pipeline, detections)


def test_weights_change_residency_while_frames_flow(
    pipeline: Pipeline, detections: Received, reports: Received, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    refusal = pipeline.client.set_all("backbone", weights_residency="two_stage", weights_budget_mb=0.01)
    assert "weights_budget_mb" in refusal
    for residency in ("two_stage", "resident"):
        assert set(pipeline.client.set("backbone", weights_residency=residency, weights_budget_mb=0.0)) == {""}
        reports.clear()
        report = reports.wait_for_one(lambda report, want=residency: report.weights_residency == want, residency)
        assert (report.weights_bytes > 0) == (residency == "two_stage")
        flows_on(pipeline, detections)


def test_head_weights_change_residency_while_frames_flow(
    pipeline: Pipeline, detections: Received, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    diagnostics = pipeline.client.subscribe(DiagnosticArray, "/diagnostics")

    def weights(message: DiagnosticArray) -> str | None:
        """Returns what the head's status says about its weights; None for another node's status."""
        if not message.status[0].name.endswith("/head"):
            return None
        return {entry.key: entry.value for entry in message.status[0].values}.get("weights", "resident")

    assert "weights_budget_mb" in pipeline.client.set_all("head", weights_residency="two_stage", weights_budget_mb=1e-3)
    for residency in ("two_stage", "resident"):
        assert pipeline.client.set_all("head", weights_residency=residency, weights_budget_mb=0.0) == ""
        flows_on(pipeline, detections)
        diagnostics.clear()
        diagnostics.wait_for_one(lambda message, want=residency: (weights(message) or "").startswith(want), residency)


def test_limits_apply_to_the_next_frames(pipeline: Pipeline, detections: Received) -> None:
    """The number of detections shows that an accepted parameter takes effect."""

    def newest() -> list[Any]:
        detections.clear()
        return list(detections.wait_for(3)[2].detections)

    assert len(newest()) > 1
    assert pipeline.client.set("head", max_detections=1) == [""]
    assert len(newest()) == 1
    assert pipeline.client.set("head", max_detections=100, score_threshold=1.0) == ["", ""]
    assert newest() == []
    assert pipeline.client.set("head", score_threshold=0.0, nms_threshold=1.0) == ["", ""]
    all_of_them = len(newest())
    assert pipeline.client.set("head", nms_threshold=0.0) == [""]
    assert 0 < len(newest()) <= all_of_them
    assert pipeline.client.set("head", nms_threshold=0.5) == [""]


def test_camera_rate_changes_while_frames_flow(pipeline: Pipeline, detections: Received) -> None:
    assert pipeline.client.set("camera", rate_hz=0.5) == [""]
    before = pipeline.settled(0).received
    assert pipeline.client.set("camera", rate_hz=20.0) == [""]
    wait_until(lambda: pipeline.counts.received > before + 5, "more frames")
    flows_on(pipeline, detections)


def test_whole_number_is_accepted_as_a_float(pipeline: Pipeline) -> None:
    assert pipeline.client.set("backbone", batch_timeout_ms=40) == [""]
    value = pipeline.client.get("backbone", "batch_timeout_ms")
    assert (value, type(value)) == (40.0, float)
    assert pipeline.client.set("head", score_threshold=0) == [""]


REFUSED = [
    ("backbone", "batch_size", -1, ["batch_size", "-1", "0", "256"]),
    ("backbone", "batch_size", 257, ["batch_size", "257", "0", "256"]),
    ("backbone", "batch_size", 2.5, ["batch_size", "2.5", "a whole number"]),
    ("backbone", "batch_size", "many", ["batch_size", "many", "a whole number"]),
    ("backbone", "batch_size", True, ["batch_size", "True", "a whole number"]),
    ("backbone", "batch_timeout_ms", -1.0, ["batch_timeout_ms", "-1", "0", "60000"]),
    ("backbone", "batch_timeout_ms", float("nan"), ["batch_timeout_ms", "nan", "60000"]),
    ("backbone", "drop_policy", "newest", ["drop_policy", "newest", "latest, block"]),
    ("backbone", "pool_slots", 0, ["pool_slots", "0", "1", "64"]),
    ("backbone", "split_point", "nowhere", ["nowhere", "neck", "block3", "output"]),
    ("backbone", "split_point", "", ["split point", "neck"]),
    ("backbone", "memory_policy", "fast", ["memory_policy", "fast", "device, managed, pinned, auto"]),
    ("backbone", "memory_budget_mb", 0.01, ["Features and staging take", "memory_budget_mb of 0.0", "would fit"]),
    ("backbone", "objective", "speed", ["objective", "speed", "throughput, balanced, latency"]),
    ("backbone", "latency_bound_ms", -1.0, ["latency_bound_ms", "-1", "60000"]),
    ("backbone", "split_point", 3, ["split_point", "3", "a text"]),
    ("backbone", "model", "resnet18", ["model", "read-only"]),
    ("backbone", "image_topics", ["other"], ["image_topics", "read-only"]),
    ("backbone", "batch_sizes", 1, ["batch_sizes", "Did you mean 'batch_size'?"]),
    ("head", "score_threshold", 1.1, ["score_threshold", "1.1", "0", "1"]),
    ("head", "nms_threshold", "0.5", ["nms_threshold", "0.5", "a number"]),
    ("head", "max_detections", 0, ["max_detections", "0", "1", "1000"]),
    ("head", "weights", "none", ["weights", "read-only"]),
    ("camera", "rate_hz", -1.0, ["rate_hz", "-1", "0", "1000"]),
    ("camera", "source", "shapes", ["source", "read-only"]),
    ("stats", "period_s", 2.0, ["period_s", "read-only"]),
]


@pytest.mark.parametrize(("node", "name", "value", "words"), REFUSED)
def test_refused_value_gets_a_sentence_and_has_no_effect(
    pipeline: Pipeline, detections: Received, node: str, name: str, value: Any, words: list[str]
) -> None:
    table = pipeline.nodes[node].table.values
    before = pipeline.client.get(node, name)
    (reason,) = pipeline.client.set(node, **{name: value})
    for word in words:
        assert word in reason
    assert pipeline.client.get(node, name) == before
    assert pipeline.nodes[node].table.values == table
    flows_on(pipeline, detections)


@pytest.mark.parametrize("bad", [{"split_point": "nowhere"}, {"batch_size": -1}, {"model": "resnet18"}, {"nothing": 1}])
def test_one_bad_value_refuses_all_set_together(pipeline: Pipeline, bad: dict[str, Any]) -> None:
    before, settings = pipeline.backbone.values, pipeline.backbone.stage.settings
    assert pipeline.client.set_all("backbone", pool_slots=9, drop_policy="block", **bad) != ""
    assert pipeline.backbone.values == before
    assert pipeline.backbone.stage.settings == settings
    assert pipeline.client.get("backbone", "pool_slots") == before.stage.pool_slots
    assert pipeline.client.get("backbone", "drop_policy") == before.stage.drop_policy.value


def test_values_set_together_take_effect_together(pipeline: Pipeline, detections: Received) -> None:
    assert pipeline.client.set_all("backbone", batch_size=2, split_point="block5", pool_slots=3) == ""
    settings = pipeline.backbone.stage.settings
    assert (settings.batch_size, settings.split_point, settings.pool_slots) == (2, "block5", 3)
    flows_on(pipeline, detections)


def test_too_much_memory_is_refused_and_old_pool_stays(pipeline: Pipeline, detections: Received) -> None:
    reason = pipeline.client.set_all("backbone", batch_size=256, pool_slots=64, split_point="stem.2")
    if reason == "":
        pytest.skip("this machine hands out as much memory as was asked for")
    assert "bytes cannot be allocated" in reason
    flows_on(pipeline, detections)


CHANGES: dict[str, dict[str, list[Any]]] = {
    "backbone": {
        "split_point": ["input", "block3", "block7", "neck", "output", "nowhere"],
        "batch_size": [1, 2, 3, -1, 1000],
        "batch_timeout_ms": [0.0, 1, 30.0, -5.0],
        "drop_policy": ["latest", "block", "both"],
        "pool_slots": [1, 2, 4, 65],
        "memory_policy": ["device", "managed", "pinned", "auto", "fast"],
        "max_rate_hz": [0.0, 40.0, 1000, -1.0, "fast"],
        "model": ["resnet18"],
        "batch_sizes": [2],
    },
    "head": {"score_threshold": [0.0, 0.5, 2.0], "nms_threshold": [0.0, 1.0, "0.5"], "max_detections": [1, 10, -1]},
    "camera": {"rate_hz": [0.0, 100.0, -1.0], "source": ["none"]},
}


def in_force(pipeline: Pipeline) -> dict[str, Any]:
    """Returns the settings that the stages use, not those that the nodes report."""
    backbone, head = pipeline.backbone, pipeline.nodes["head"]
    settings, limits = dataclasses.asdict(backbone.stage.settings), dataclasses.asdict(head.stage.limits)
    settings = {name: value.value if isinstance(value, Enum) else value for name, value in settings.items()}
    settings["batch_timeout_ms"] = 1e3 * settings.pop("batch_timeout_s")
    rates = {"max_rate_hz": backbone.pipeline.limiter.max_rate_hz, "rate_hz": pipeline.nodes["camera"].values.rate_hz}
    return {**settings, **limits, **rates}


def test_many_changes_under_load_keep_the_ledger_closed(
    pipeline: Pipeline, detections: Received, reports: Received
) -> None:
    """Each of 500 changes is refused with a reason, or takes effect at once."""
    dice = random.Random(5)
    refused = 0
    assert pipeline.client.set_all("backbone", batch_size=1) == ""  # with 0, no frame waits, whatever the timeout is
    start = pipeline.counts.received
    for _ in range(500):
        node = dice.choice(list(CHANGES))
        names = dice.sample(sorted(CHANGES[node]), dice.randint(1, 2))
        asked = {name: dice.choice(CHANGES[node][name]) for name in names}
        before = in_force(pipeline)
        reason = pipeline.client.set_all(node, **asked)
        if reason:
            refused += 1
            assert any(name in reason or repr(asked[name]) in reason for name in names), (asked, reason)
            assert in_force(pipeline) == before
        else:
            assert in_force(pipeline) == pytest.approx({**before, **asked})
            assert {name: pipeline.client.get(node, name) for name in names} == asked
        assert pipeline.counts.balanced
    assert 100 < refused < 400
    assert pipeline.counts.received > start + 50
    assert pipeline.client.set("camera", rate_hz=20.0) == [""]
    usual = {"batch_size": 1, "drop_policy": "latest", "split_point": "default", "max_rate_hz": 0.0}
    assert pipeline.client.set_all("backbone", **usual) == ""
    flows_on(pipeline, detections)
    pipeline.nodes["camera"].trigger_deactivate()
    counts = pipeline.settled(0)
    assert set(counts.dropped) <= {"overrun", "rate_limited"}
    reports.clear()
    report = reports.wait_for(1)[0]
    assert report.received == counts.received
    assert report.published == counts.published
    assert {drop.reason: drop.count for drop in report.dropped} == dict(counts.dropped)
    pipeline.nodes["camera"].trigger_activate()


# What a node is started with.


def test_parameter_for_all_nodes_must_be_known_to_one(context: Context) -> None:
    overrides = [Parameter("model", value="shapes"), Parameter("rate_hz", value=5.0)]
    nodes = [
        NODE_TYPES[name](context=context, namespace="/all", parameter_overrides=overrides, use_global_arguments=False)
        for name in ("head", "camera")
    ]
    try:
        refuse_unknown([node.table for node in nodes])
        overrides.append(Parameter("rate", value=5.0))
        nodes.append(
            NODE_TYPES["stats"](
                context=context, namespace="/all", parameter_overrides=overrides, use_global_arguments=False
            )
        )
        with pytest.raises(ConfigurationError, match=r"has no parameter 'rate' \(value 5.0\)"):
            refuse_unknown([node.table for node in nodes])
    finally:
        for node in nodes:
            node.close()


def test_unknown_parameter_is_refused_with_a_suggestion(context: Context) -> None:
    node = BackboneNode(
        context=context,
        namespace="/typo",
        parameter_overrides=[Parameter("batch_sise", value=2)],
        use_global_arguments=False,
    )
    with pytest.raises(ConfigurationError, match=r"Did you mean 'batch_size'\?"):
        refuse_unknown([node.table])
    node.close()


def test_parameter_set_while_inactive_takes_effect(pipeline: Pipeline) -> None:
    """A parameter set while inactive takes effect at the next activation."""
    assert pipeline.client.transition("backbone", "deactivate")
    assert pipeline.client.set("backbone", batch_size=2) == [""]
    assert pipeline.client.transition("backbone", "activate")
    assert pipeline.backbone.stage.settings.batch_size == 2
    pipeline.client.publisher(Image, "image").publish(image())


@pytest.mark.parametrize("error", [RuntimeError("a fault of ours"), ConfigurationError("rate_hz cannot be 5 here.")])
def test_only_an_unforeseen_error_is_logged_with_its_traceback(
    context: Context, error: Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: CameraParameters) -> None:
        raise error

    node = Node("refusing", context=context, use_global_arguments=False)
    Parameters(node, CameraParameters, refuse)
    (result,) = node.set_parameters([Parameter("rate_hz", value=5.0)])
    node.destroy_node()
    assert not result.successful
    assert str(error) in result.reason
    assert ("Traceback" in capfd.readouterr().err) == isinstance(error, RuntimeError)
