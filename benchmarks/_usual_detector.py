"""The rival: a YOLO detector as popular ROS 2 packages write it, with one node and one callback around an engine.

    python _usual_detector.py torch|onnxruntime|openvino FILE.onnx

The callback has the usual steps: the message becomes an array, which OpenCV fits into the input between grey borders.
The engine runs the network, OpenCV suppresses overlaps, and the detections are published. The node gets the best that
its design allows. Each engine has all cores and its settings for a low latency, and everything is warmed up. Boxes
below the threshold are left out first. The queue holds one image, so that the node always works on the newest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from _usual_node import Found, UsualNode, spin
from _yolo_size import HEIGHT, WIDTH

from split_infer_ros.runtime.usage_reports import stop_usage_reports
from split_infer_ros.telemetry.machine import num_cores

SCORE_THRESHOLD, NMS_THRESHOLD, MAX_DETECTIONS = 0.5, 0.5, 100
GREY = (114, 114, 114)

Infer = Callable[[np.ndarray], np.ndarray]


def load_torch(_: Path) -> Infer:
    """Returns the network as built, in torch."""
    import torch
    from _yolo_sized import make_network  # only here: it imports torch

    network = make_network()

    def infer(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return network(torch.from_numpy(images)).numpy()  # type: ignore[no-any-return]

    return infer


def load_onnxruntime(path: Path) -> Infer:
    """Returns a session of ONNX Runtime with all cores, whose threads spin between operators, as is its default."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_cores()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})[0]


def load_openvino(path: Path) -> Infer:
    """Returns a request of OpenVINO with all cores, in float32, for the lowest latency and a batch of one."""
    stop_usage_reports()
    import openvino

    core = openvino.Core()
    network = core.read_model(path)
    network.reshape([1, 3, HEIGHT, WIDTH])
    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": num_cores(), "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(network, "CPU", hints).create_infer_request()
    return lambda images: request.infer([images], share_inputs=True, share_outputs=True)[0]


ENGINES = {"torch": load_torch, "onnxruntime": load_onnxruntime, "openvino": load_openvino}


class UsualDetector(UsualNode):
    """Subscribes to ``image``, publishes ``detections``."""

    encoding = "bgr8"

    def __init__(self, infer: Infer) -> None:
        super().__init__("usual")
        self._infer = infer
        self.serve(warm_up=np.zeros((HEIGHT, WIDTH, 3), np.uint8), times=5)

    def find(self, image: np.ndarray) -> Found:
        """Returns the detections in a BGR image, uint8 (h, w, 3)."""
        height, width = image.shape[:2]
        scale = min(HEIGHT / height, WIDTH / width)
        fit_height, fit_width = round(height * scale), round(width * scale)
        if (fit_height, fit_width) != (height, width):
            image = cv2.resize(image, (fit_width, fit_height), interpolation=cv2.INTER_LINEAR)
        top, left = (HEIGHT - fit_height) // 2, (WIDTH - fit_width) // 2
        if (fit_height, fit_width) != (HEIGHT, WIDTH):
            bottom, right = HEIGHT - fit_height - top, WIDTH - fit_width - left
            image = cv2.copyMakeBorder(image, top, bottom, left, right, cv2.BORDER_CONSTANT, value=GREY)
        images = cv2.dnn.blobFromImage(image, 1 / 255, swapRB=True)
        found = self._infer(images)[0]
        best = found[4:].max(0)
        kept = np.flatnonzero(best > SCORE_THRESHOLD)
        boxes, scores, classes = found[:4, kept].T, best[kept], found[4:, kept].argmax(0)
        boxes[:, :2] -= boxes[:, 2:] / 2
        chosen = cv2.dnn.NMSBoxesBatched(boxes.tolist(), scores.tolist(), classes.tolist(), 0.0, NMS_THRESHOLD)
        chosen = np.asarray(chosen, dtype=int).ravel()[:MAX_DETECTIONS]
        boxes[:, :2] -= (left, top)
        labels = (f"class{label}" for label in classes[chosen])
        return zip(boxes[chosen] / scale, labels, scores[chosen], strict=True)


if __name__ == "__main__":
    engine, path = sys.argv[1:3]
    spin(lambda: UsualDetector(ENGINES[engine](Path(path))))
