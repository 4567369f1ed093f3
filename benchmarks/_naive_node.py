"""The rival: image classification as popular ROS 2 packages write it, with one node and one callback.

It has the usual parts in their usual order. The message becomes an array as cv_bridge does it, then an RGB picture. The
picture goes through torchvision's own transforms and the model as built, and the best classes are published. It gets
what its design allows: transforms and model are made once and warmed up, gradients are off, and torch has all cores.
Its queue holds one image, so that it always works on the newest.
"""

from __future__ import annotations

import cv2
import numpy as np
import rclpy
import torch
from PIL import Image as Picture
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image
from torchvision import models, transforms
from vision_msgs.msg import Detection2D, Detection2DArray, ObjectHypothesisWithPose

LABELS = models.MobileNet_V2_Weights.IMAGENET1K_V1.meta["categories"]
BEST_CLASSES = 5


class NaiveNode(Node):
    """Subscribes to ``image``, publishes ``detections``."""

    def __init__(self) -> None:
        super().__init__("naive")
        self.model = models.mobilenet_v2(weights=None).eval()
        self.transform = transforms.Compose(
            [
                transforms.Resize(256),
                transforms.CenterCrop(224),
                transforms.ToTensor(),
                transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
            ]
        )
        for _ in range(3):
            self.classify(np.zeros((480, 640, 3), np.uint8))
        self.publisher = self.create_publisher(Detection2DArray, "detections", 10)
        newest = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
        self.create_subscription(Image, "image", self.receive, newest)

    @torch.no_grad()
    def classify(self, image: np.ndarray) -> tuple[list[float], list[int]]:
        """Returns scores and indices of the best classes of an (h, w, 3) RGB image."""
        batch = self.transform(Picture.fromarray(image)).unsqueeze(0)
        scores, labels = torch.nn.functional.softmax(self.model(batch)[0], dim=0).topk(BEST_CLASSES)
        return scores.tolist(), labels.tolist()

    def receive(self, message: Image) -> None:
        """Takes one image and publishes one array of detections."""
        image = np.frombuffer(message.data, np.uint8).reshape(message.height, message.width, 3)
        if message.encoding == "bgr8":
            image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        scores, labels = self.classify(image)
        found = Detection2DArray(header=message.header)
        for score, label in zip(scores, labels, strict=True):
            detection = Detection2D(header=message.header)
            detection.bbox.center.position.x = message.width / 2
            detection.bbox.center.position.y = message.height / 2
            detection.bbox.size_x = float(message.width)
            detection.bbox.size_y = float(message.height)
            hypothesis = ObjectHypothesisWithPose()
            hypothesis.hypothesis.class_id = LABELS[label]
            hypothesis.hypothesis.score = score
            detection.results.append(hypothesis)
            found.detections.append(detection)
        self.publisher.publish(found)


def main() -> None:
    """Runs the node until a signal comes."""
    rclpy.init()
    node = NaiveNode()
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
