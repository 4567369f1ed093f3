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
import rclpy
from _yolo_sized import HEIGHT, WIDTH, make_network
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2D, Detection2DArray, ObjectHypothesisWithPose

from split_infer_ros.telemetry.machine import num_cores

SCORE_THRESHOLD, NMS_THRESHOLD, MAX_DETECTIONS = 0.5, 0.5, 100
GREY = (114, 114, 114)

Infer = Callable[[np.ndarray], np.ndarray]


def load_torch(_: Path) -> Infer:
    """Returns the network as built, in torch."""
    import torch

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
    import openvino

    core = openvino.Core()
    network = core.read_model(path)
    network.reshape([1, 3, HEIGHT, WIDTH])
    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": num_cores(), "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(network, "CPU", hints).create_infer_request()
    return lambda images: request.infer([images], share_inputs=True, share_outputs=True)[0]


ENGINES = {"torch": load_torch, "onnxruntime": load_onnxruntime, "openvino": load_openvino}


class UsualDetector(Node):
    """Subscribes to ``image``, publishes ``detections``."""

    def __init__(self, infer: Infer) -> None:
        super().__init__("usual")
        self._infer = infer
        for _ in range(5):
            self.detect(np.zeros((HEIGHT, WIDTH, 3), np.uint8))
        self.publisher = self.create_publisher(Detection2DArray, "detections", 10)
        newest = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
        self.create_subscription(Image, "image", self.receive, newest)

    def detect(self, image: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns boxes (n, 4) as left, top, width, height in pixels of a BGR image, scores (n,) and classes (n,)."""
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
        return boxes[chosen] / scale, scores[chosen], classes[chosen]

    def receive(self, message: Image) -> None:
        """Takes one image and publishes one array of detections."""
        image = np.frombuffer(message.data, np.uint8).reshape(message.height, message.width, 3)
        if message.encoding == "rgb8":
            image = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
        array = Detection2DArray(header=message.header)
        for box, score, label in zip(*self.detect(image), strict=True):
            detection = Detection2D(header=message.header)
            left, top, width, height = map(float, box)
            detection.bbox.center.position.x = left + width / 2
            detection.bbox.center.position.y = top + height / 2
            detection.bbox.size_x, detection.bbox.size_y = width, height
            hypothesis = ObjectHypothesisWithPose()
            hypothesis.hypothesis.class_id = f"class{label}"
            hypothesis.hypothesis.score = float(score)
            detection.results.append(hypothesis)
            array.detections.append(detection)
        self.publisher.publish(array)


def main() -> None:
    """Runs the node until a signal comes."""
    engine, path = sys.argv[1:3]
    rclpy.init()
    node = UsualDetector(ENGINES[engine](Path(path)))
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
