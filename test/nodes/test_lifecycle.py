"""The lifecycle services configure, activate, deactivate and clean up the nodes."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
from rclpy.context import Context
from ros_pipeline import Pipeline
from ros_support import image, wait_until
from safetensors.torch import save_file
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

from split_infer_ros.errors import WeightsError
from split_infer_ros.server.head_stage import HeadStage
from split_infer_ros.split.model import SplitModel

WAITING: dict[str, Any] = {"autostart": False}
PARAMETERS = {"width": 64, "height": 48, "rate_hz": 50.0}
NODES = ("stats", "head", "backbone", "camera")


def state(pipeline: Pipeline) -> set[str]:
    return {pipeline.client.state(node) for node in NODES}


def test_nodes_start_by_themselves(context: Context) -> None:
    with Pipeline(context, stats={}, head={}, backbone={}, camera=PARAMETERS) as pipeline:
        assert state(pipeline) == {"active"}


def test_nodes_pass_all_lifecycle_states_repeatedly(context: Context) -> None:
    nodes = {"stats": WAITING, "head": WAITING, "backbone": WAITING, "camera": {**WAITING, **PARAMETERS}}
    with Pipeline(context, **nodes) as pipeline:
        client = pipeline.client
        assert state(pipeline) == {"unconfigured"}
        for _ in range(2):
            assert all(client.transition(node, "configure") for node in NODES)
            assert state(pipeline) == {"inactive"}
            detections = client.subscribe(Detection2DArray, "detections")
            for _ in range(2):
                assert all(client.transition(node, "activate") for node in NODES)
                assert state(pipeline) == {"active"}
                detections.clear()
                detections.wait_for(3)
                assert all(client.transition(node, "deactivate") for node in reversed(NODES))
                counts = pipeline.settled(3)
                wait_until(lambda: len(detections) + 50 > counts.published, "the last detections")
            assert all(client.transition(node, "cleanup") for node in NODES)
            assert state(pipeline) == {"unconfigured"}
        assert all(client.transition(node, "shutdown") for node in NODES)
        assert state(pipeline) == {"finalized"}


def test_cleanup_frees_the_nodes_memory(context: Context) -> None:
    with Pipeline(context, backbone={}) as pipeline:
        held = [weakref.ref(pipeline.backbone.stage), weakref.ref(pipeline.backbone.stage._instance.plan.pool.slots)]
        assert pipeline.client.transition("backbone", "deactivate")
        assert pipeline.client.transition("backbone", "cleanup")
        assert [reference() for reference in held] == [None, None]


def test_impossible_transition_is_refused(context: Context) -> None:
    with Pipeline(context, backbone=WAITING) as pipeline:
        assert not pipeline.client.transition("backbone", "activate")
        assert pipeline.client.state("backbone") == "unconfigured"
        assert pipeline.client.transition("backbone", "configure")
        assert not pipeline.client.transition("backbone", "cleanupp")
        assert pipeline.client.transition("backbone", "activate")
        assert not pipeline.client.transition("backbone", "configure")
        assert pipeline.client.state("backbone") == "active"


def test_node_stays_unconfigured_until_weights_exist(context: Context, model: SplitModel, tmp_path: Path) -> None:
    path = tmp_path / "late.safetensors"
    with Pipeline(context, backbone={**WAITING, "weights": str(path)}, head={}) as pipeline:
        for _ in range(2):
            assert not pipeline.client.transition("backbone", "configure")
            assert pipeline.client.state("backbone") == "unconfigured"
        save_file(model.entry.build().state_dict(), path)
        assert pipeline.client.transition("backbone", "configure")
        assert pipeline.client.transition("backbone", "activate")
        pipeline.client.publisher(Image, "image").publish(image())
        assert pipeline.settled(1).published == 1


def test_failed_autostart_raises_the_reason(context: Context, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="There is no weights file"):
        Pipeline(context, backbone={"weights": str(tmp_path / "nowhere.pt")})


def test_parameters_set_before_configuration_apply(context: Context) -> None:
    with Pipeline(context, backbone={**WAITING}) as pipeline:
        assert pipeline.client.set_all("backbone", batch_size=3, split_point="block3") == ""
        assert pipeline.client.transition("backbone", "configure")
        settings = pipeline.backbone.stage.settings
        assert (settings.batch_size, settings.split_point) == (3, "block3")


def test_unknown_split_point_is_refused_at_configuration(context: Context) -> None:
    with Pipeline(context, backbone={**WAITING}) as pipeline:
        assert pipeline.client.set("backbone", split_point="nowhere") == [
            ""
        ]  # which split points there are is not yet known
        assert not pipeline.client.transition("backbone", "configure")
        assert pipeline.client.set("backbone", split_point="neck") == [""]
        assert pipeline.client.transition("backbone", "configure")


def test_inactive_backbone_takes_no_images(context: Context) -> None:
    with Pipeline(context, backbone={}, head={}) as pipeline:
        images = pipeline.client.publisher(Image, "image")
        assert pipeline.client.transition("backbone", "deactivate")
        wait_until(lambda: images.get_subscription_count() == 0, "the subscription to end")
        images.publish(image())
        assert pipeline.client.transition("backbone", "activate")
        wait_until(lambda: images.get_subscription_count() == 1, "the subscription to begin")
        images.publish(image(stamp=1))
        counts = pipeline.settled(1)
        assert (counts.received, counts.published) == (1, 1)


def test_head_is_told_where_the_model_is_split_also_if_it_becomes_active_later(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[tuple[str, str, int]] = []
    monkeypatch.setattr(HeadStage, "prepare", lambda stage, *arguments: prepared.append(arguments))
    with Pipeline(context, head={}, backbone={"split_point": "block3"}) as pipeline:
        assert prepared == [("shapes", "block3", 1)]
        assert pipeline.client.transition("head", "deactivate")
        assert pipeline.client.set("backbone", split_point="block5", batch_size=2) == ["", ""]
        assert prepared[1:] == []
        assert pipeline.client.transition("head", "activate")
        assert prepared[1:] == [("shapes", "block5", 2)]
