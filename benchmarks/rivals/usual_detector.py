"""A rival: a YOLO detector as popular ROS 2 packages write it, with one node and one callback around an engine.

    python benchmarks rivals.usual_detector torch|onnxruntime|openvino FILE.onnx [--precision fp32|as_it_compiles]

The callback has the usual steps: the message becomes an array, which OpenCV fits into the input between grey borders.
The engine runs the network, OpenCV suppresses overlaps, and the detections are published. The node gets the best that
its design allows. Each engine has all cores and its settings for a low latency, and everything is warmed up. Boxes
below the threshold are left out first. The queue holds one image, so that the node always works on the newest.

Only OpenVINO has the option ``--precision``: fp32 by force, or as OpenVINO compiles when the node names no precision.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np

from benchmarks.common.yolo_size import HEIGHT, WIDTH
from benchmarks.rivals.usual_node import Found, UsualNode, spin
from benchmarks.rivals.usual_openvino import FP32, PRECISIONS, compile_file
from split_infer_ros.telemetry.machine import num_cores

SCORE_THRESHOLD, NMS_THRESHOLD, MAX_DETECTIONS = 0.5, 0.5, 100
GREY = (114, 114, 114)

Infer = Callable[[np.ndarray], np.ndarray]


def load_torch(_: Path) -> Infer:
    """Returns a function that runs the network as built in torch. The file is not needed."""
    import torch

    from benchmarks.common.yolo_sized import make_network  # only here: it imports torch

    network = make_network()

    def infer(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return network(torch.from_numpy(images)).numpy()  # type: ignore[no-any-return]

    return infer


def load_onnxruntime(path: Path) -> Infer:
    """Returns a function that runs the file in ONNX Runtime on all cores.

    Its threads spin between operators, which is ONNX Runtime's default.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_cores()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})[0]


def load_openvino(path: Path, precision: str = FP32) -> Infer:
    """Returns a function that runs the file in OpenVINO on all cores, one image at a time.

    ``precision`` is one of ``PRECISIONS``.
    """
    request = compile_file(path, precision).create_infer_request()
    return lambda images: request.infer([images], share_inputs=True, share_outputs=True)[0]


OPENVINO = "openvino"
ENGINES = {"torch": load_torch, "onnxruntime": load_onnxruntime, OPENVINO: load_openvino}


class UsualDetector(UsualNode):
    """A node that subscribes to ``image`` and publishes ``detections``.

    Args:
        infer: maps images, float32 (1, 3, HEIGHT, WIDTH) of 0..1, to boxes and scores, float32 (1, 84, boxes).
    """

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


def chosen_engine(given: Sequence[str] | None = None) -> Callable[[], Infer]:
    """Returns a function that loads the engine which the arguments name. rclpy reads the arguments of ROS.

    Args:
        given: the command-line arguments; None means those of this process.

    Raises:
        SystemExit: the arguments are wrong.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("path", type=Path)
    parser.add_argument("--precision", choices=PRECISIONS, help=f"of {OPENVINO} alone; by default {FP32}")
    chosen, _ = parser.parse_known_args(given)
    if chosen.precision is None:
        return lambda: ENGINES[chosen.engine](chosen.path)
    if chosen.engine != OPENVINO:
        parser.error(f"--precision is an option of {OPENVINO}; {chosen.engine} computes in {FP32}.")
    return lambda: load_openvino(chosen.path, chosen.precision)


def main() -> int:
    """Runs the node."""
    load = chosen_engine()
    spin(lambda: UsualDetector(load()))
    return 0
