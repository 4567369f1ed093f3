"""Features of every dtype, on each way from the backbone to the head."""

from __future__ import annotations

from pathlib import Path

import pytest
from rclpy.context import Context

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from dtype_nets import CLASSES, drawn
from ros_pipeline import Pipeline
from ros_support import START_S, image
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

pytestmark = pytest.mark.timeout(4 * START_S)

TRANSPORTS = ("intra_process", "shared_memory", "network")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_dtype_crosses_by_each_transport(context: Context, tmp_path: Path, transport: str) -> None:
    """The split point changes while frames flow. Each score keeps its bits; see ``drawn``."""
    path = tmp_path / "drawn.onnx"
    path.write_bytes(drawn(1).proto.SerializeToString())
    common = {
        "model": str(path),
        "decoder": "classifier",
        "weights": "default",
        "engine": "onnxruntime",
        "transport": transport,
    }
    with Pipeline(context, backbone=common, head={**common, "score_threshold": 0.0}) as pipeline:
        points = {str(point.tensors[0].dtype): point.name for point in pipeline.backbone.model.split_points}
        assert len(points) == 7
        detections = pipeline.client.subscribe(Detection2DArray, "detections")
        images = pipeline.client.publisher(Image, "image")
        for count, name in enumerate(points.values(), 1):
            assert pipeline.client.set("backbone", split_point=name) == [""]
            assert pipeline.backbone.stage.settings.split_point == name
            images.publish(image(stamp=count))
            detections.wait_for(count)
        results = [
            [(each.results[0].hypothesis.class_id, each.results[0].hypothesis.score) for each in message.detections]
            for message in detections
        ]
    assert len(results[0]) == CLASSES
    assert all(each == results[0] for each in results)
