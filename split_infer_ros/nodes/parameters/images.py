"""The parameters of nodes that subscribe to images."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from split_infer_ros.images.sizes import MAX_PIXELS
from split_infer_ros.nodes.parameters.table import NodeParameters
from split_infer_ros.setting import setting


class ImageReliability(Enum):
    """The reliability of image subscriptions."""

    BEST_EFFORT = "best_effort"
    RELIABLE = "reliable"


class ImageTransport(Enum):
    """The form in which cameras send images."""

    RAW = "raw"
    COMPRESSED = "compressed"


@dataclass(frozen=True)
class ImageParameters(NodeParameters):
    """The parameters of every node that subscribes to images."""

    PURPOSE: ClassVar[str] = "Images"

    image_reliability: ImageReliability = setting(
        ImageReliability.BEST_EFFORT,
        "The reliability of the image subscriptions. best_effort: matches every publisher. reliable: lost images are "
        "sent again, if the publisher is reliable too.",
        read_only=True,
    )
    image_depth: int = setting(
        5,
        "How many images of each topic the middleware keeps until the node takes them.",
        minimum=1,
        maximum=10_000,
        read_only=True,
    )
    image_transport: ImageTransport = setting(
        ImageTransport.RAW,
        "The form of the images: raw, or compressed (JPEG or PNG from TOPIC/compressed).",
        read_only=True,
    )
    max_image_pixels: int = setting(
        MAX_PIXELS,
        "Images with more pixels are dropped before they are decoded.",
        minimum=1,
        maximum=2**31 - 1,
        read_only=True,
    )
    max_rate_hz: float = setting(
        0.0,
        "The most frames per second of each camera. Further frames are dropped as rate_limited. 0: no limit.",
        minimum=0.0,
        maximum=10_000.0,
    )
    lazy: bool = setting(
        False,
        "Whether to compute only while somebody subscribes to the results. Other frames are dropped as nobody_listens. "
        "Backbone and head need the same.",
    )
