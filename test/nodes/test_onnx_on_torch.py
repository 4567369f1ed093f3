"""A user's ONNX file on engine torch: on the backbone, on the head, or on both."""

from __future__ import annotations

from pathlib import Path

import pytest
from rclpy.context import Context

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx2torch")

import torch
from onnx_nets import exported
from ros_pipeline import Pipeline
from ros_support import image
from sensor_msgs.msg import Image
from torch import nn
from vision_msgs.msg import Detection2DArray

from split_infer_ros.nodes.backbone import BackboneNode
from split_infer_ros.nodes.head import HeadNode
from split_infer_ros.split.onnx_network import OnnxNetwork
from split_infer_ros.split.torch_network import TorchNetwork


@pytest.fixture
def classifier(tmp_path: Path) -> str:
    """The path of a classifier of ten classes, with a split point in its middle."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        body = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1))
        net = nn.Sequential(body, nn.Flatten(), nn.Linear(512, 10))
    nn.init.zeros_(net[2].weight)
    net[2].bias.data.copy_(torch.arange(10.0))
    path = tmp_path / "mine.onnx"
    path.write_bytes(exported(net.eval(), by_dynamo=False, is_symbolic=True).proto.SerializeToString())
    return str(path)


@pytest.mark.parametrize("engines", [("torch", "torch"), ("torch", "onnxruntime"), ("onnxruntime", "torch")])
def test_onnx_file_runs_on_engine_torch(context: Context, classifier: str, engines: tuple[str, str]) -> None:
    """Both sides name the same split points and tensors, whatever runs them. The score is softmax's of 0 to 9."""
    backbone, head = ({"model": classifier, "weights": "default", "engine": engine} for engine in engines)
    with Pipeline(context, backbone=backbone, head=head) as pipeline:
        nodes = pipeline.nodes["backbone"], pipeline.nodes["head"]
        assert isinstance(nodes[0], BackboneNode)
        assert isinstance(nodes[1], HeadNode)
        kinds = {"torch": TorchNetwork, "onnxruntime": OnnxNetwork}
        assert type(nodes[0].model.network) is kinds[engines[0]]
        assert type(nodes[1].model.network) is kinds[engines[1]]
        detections = pipeline.client.subscribe(Detection2DArray, "detections")
        pipeline.client.publisher(Image, "image").publish(image(stamp=1))
        (message,) = detections.wait_for(1)
        (found,) = message.detections
        assert found.results[0].hypothesis.class_id == "9"
        assert found.results[0].hypothesis.score == pytest.approx(0.632, abs=0.001)
