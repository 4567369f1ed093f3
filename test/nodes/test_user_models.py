"""A user's own models in the pipeline: one from a factory, and an exported program."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.context import Context
from ros_pipeline import Pipeline
from ros_support import image
from sensor_msgs.msg import Image
from torch import nn
from vision_msgs.msg import Detection2DArray

FACTORY = """
    from dataclasses import replace

    import torch
    from torch import nn

    from split_infer_ros.models.catalogue import find_model
    from split_infer_ros.models.detections import Detections

    def odd():
        boxes = torch.tensor([[1.0, 2.0, torch.nan, 4.0], [1.0, 2.0, 3.0, 4.0]])
        found = Detections(boxes, torch.tensor([0.9, 0.8]), torch.tensor([0, 1]))
        return replace(find_model("shapes"), name="odd", decode=lambda outputs, limits: [found for _ in outputs[0]])

    def make():
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
        net.image_size = 32
        net.labels = ("day", "night")
        nn.init.zeros_(net[4].weight)
        net[4].bias.data.copy_(net[4].bias.new_tensor([0.0, 3.0]))
        return net
"""


@pytest.fixture(params=["factory", "program"])
def model(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a model that finds its second class in every image."""
    (tmp_path / "nets_of_mine.py").write_text(textwrap.dedent(FACTORY))
    monkeypatch.syspath_prepend(tmp_path)
    if request.param == "factory":
        return "nets_of_mine:make"
    import nets_of_mine  # type: ignore[import-not-found]

    net: nn.Module = nets_of_mine.make().eval()
    batch = {0: torch.export.Dim("batch", min=1)}
    program = torch.export.export(net, (torch.zeros(2, 3, 32, 32),), dynamic_shapes=(batch,))
    torch.export.save(program, tmp_path / "net.pt2")
    return str(tmp_path / "net.pt2")


def test_user_model_runs_as_any_other(context: Context, model: str) -> None:
    chosen = {"model": model, "allow_user_code": True, "weights": "default"}
    with Pipeline(context, backbone=chosen, head=chosen) as pipeline:
        detections = pipeline.client.subscribe(Detection2DArray, "detections")
        publisher = pipeline.client.publisher(Image, "image")
        publisher.publish(image(stamp=1))
        detections.wait_for(1)  # the next image would take its place, were it still waiting
        assert not any(pipeline.client.set("backbone", split_point="input"))
        publisher.publish(image(stamp=2, seed=1))
        for message in detections.wait_for(2):
            (found,) = message.detections
            assert found.results[0].hypothesis.class_id == ("1" if model.endswith(".pt2") else "night")
            assert found.results[0].hypothesis.score == pytest.approx(0.953, abs=0.001)
            assert (found.bbox.center.position.x, found.bbox.center.position.y) == pytest.approx((32, 24), abs=1)


@pytest.mark.parametrize("model", ["factory"], indirect=True)
def test_impossible_detection_is_left_out_and_counted(context: Context, model: str) -> None:
    chosen = {"model": model.replace(":make", ":odd"), "allow_user_code": True}
    with Pipeline(context, backbone=chosen, head=chosen) as pipeline:
        detections = pipeline.client.subscribe(Detection2DArray, "detections")
        diagnostics = pipeline.client.subscribe(DiagnosticArray, "/diagnostics")
        pipeline.client.publisher(Image, "image").publish(image())
        (message,) = detections.wait_for(1)
        assert [one.results[0].hypothesis.class_id for one in message.detections] == ["square"]
        status = diagnostics.wait_for_one(
            lambda array: any(entry.key == "left out: box_not_finite" for entry in array.status[0].values), "a count"
        ).status[0]
        assert {entry.key: entry.value for entry in status.values}["left out: box_not_finite"] == "1"
        assert status.level == DiagnosticStatus.WARN
        assert "impossible boxes, scores or labels" in status.message
