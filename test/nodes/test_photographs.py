"""SSDlite320 in the pipeline finds in photographs what torchvision's model finds."""

from __future__ import annotations

import array
from pathlib import Path

import numpy as np
import torch
from comparisons import assert_same_detections
from photographs import photograph_batch, photographs
from rclpy.context import Context
from ros_pipeline import Pipeline
from ros_support import detections_of
from safetensors.torch import save_file
from sensor_msgs.msg import Image
from torchvision.models.detection.ssd import SSD
from vision_msgs.msg import Detection2DArray

from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.detections import Detections
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.models.ssd import SsdNet, ssdlite320

SOME = 2
LIMITS = {"score_threshold": 0.3, "nms_threshold": 0.5, "max_detections": 200}
NAMES = find_model("ssdlite320").labels


def reference(path: Path) -> SSD:
    """Returns a model with the confidence of a trained one, and writes its weights to a file."""
    whole, net = ssdlite320(), SsdNet(ssdlite320)
    net.load_state_dict(whole.state_dict())
    randomise(net, photograph_batch(320, 320)[:SOME])
    with torch.no_grad():
        for last in net.head.classification_head.module_list:  # type: ignore[union-attr]
            last[-1].weight *= 4  # type: ignore[index]
    save_file(net.state_dict(), path)
    whole.load_state_dict(net.state_dict())
    whole.score_thresh, whole.nms_thresh = LIMITS["score_threshold"], LIMITS["nms_threshold"]
    whole.detections_per_img = int(LIMITS["max_detections"])
    return whole.eval()


def message(photograph: np.ndarray) -> Image:
    height, width = photograph.shape[:2]
    data = array.array("B", photograph.tobytes())
    return Image(height=height, width=width, encoding="rgb8", step=3 * width, data=data)


def test_pipeline_gives_the_models_own_detections(context: Context, tmp_path: Path) -> None:
    whole = reference(tmp_path / "ssdlite.safetensors")
    chosen = {"model": "ssdlite320", "weights": str(tmp_path / "ssdlite.safetensors")}
    with Pipeline(context, backbone=chosen, head=chosen | LIMITS) as pipeline:
        detections = pipeline.client.subscribe(Detection2DArray, "detections")
        publisher = pipeline.client.publisher(Image, "image")
        for number, photograph in enumerate(photographs()[:SOME], 1):
            publisher.publish(message(photograph))
            found = detections_of(detections.wait_for(number)[-1], NAMES)
            with torch.inference_mode():
                (expected,) = whole([torch.tensor(photograph).permute(2, 0, 1) / 255])
            assert len(expected["scores"]) > 5, "nothing to compare"
            assert (np.diff(found.scores) <= 0).all()
            named = np.array([NAMES.index(NAMES[label]) for label in expected["labels"]])
            assert_same_detections(found, Detections(expected["boxes"], expected["scores"], named))
