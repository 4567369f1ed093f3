"""A rival: image classification as popular ROS 2 packages write it, with one node and one callback.

The node has the usual parts in their usual order. The message becomes an array as cv_bridge does it, then an RGB
picture. The picture goes through torchvision's own transforms and the model as built, and the best classes are
published. The node gets the best that its design allows. Transforms and model are made once and warmed up, gradients
are off, and torch has all cores. The queue holds one image, so that the node always works on the newest.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image as Picture
from torchvision import models, transforms

from benchmarks.rivals.usual_node import Found, UsualNode, spin

LABELS = models.MobileNet_V2_Weights.IMAGENET1K_V1.meta["categories"]
BEST_CLASSES = 5


class NaiveNode(UsualNode):
    """A node that subscribes to ``image`` and publishes ``detections``: the best classes of each image."""

    encoding = "rgb8"

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
        self.serve(warm_up=np.zeros((480, 640, 3), np.uint8), times=3)

    @torch.no_grad()
    def find(self, image: np.ndarray) -> Found:
        """Returns the best classes of an RGB image, uint8 (h, w, 3), each with the whole image as its box."""
        batch = self.transform(Picture.fromarray(image)).unsqueeze(0)
        scores, labels = torch.nn.functional.softmax(self.model(batch)[0], dim=0).topk(BEST_CLASSES)
        whole = (0.0, 0.0, float(image.shape[1]), float(image.shape[0]))
        pairs = zip(scores.tolist(), labels.tolist(), strict=True)
        return [(whole, LABELS[label], score) for score, label in pairs]


def main() -> int:
    """Runs the node."""
    spin(NaiveNode)
    return 0
