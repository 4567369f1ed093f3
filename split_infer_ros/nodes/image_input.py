"""The subscription to one camera's images."""

from __future__ import annotations

from typing import Any, ClassVar

from sensor_msgs.msg import CompressedImage, Image

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.images.compressed import read_compressed
from split_infer_ros.images.encodings import Pixels, read_message
from split_infer_ros.nodes.cv_bridge_encodings import find_encoding
from split_infer_ros.nodes.frame_input import FrameInput
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.parameters.images import ImageParameters, ImageTransport
from split_infer_ros.server.frame import Origin, Payload

COMPRESSED = "/compressed"  # compressed_image_transport ends the names of its topics with this


class ImageInput(FrameInput):
    """Subscribes to raw or compressed images, whichever the topic's publishers send.

    Args:
        node, arguments: as for ``FrameInput``. The node's parameter ``max_image_pixels`` applies too.
        topic: the topic of images. With ``image_transport: compressed``, it is ``TOPIC/compressed``.
    """

    TYPES: ClassVar = {Image: "sensor_msgs/msg/Image", CompressedImage: "sensor_msgs/msg/CompressedImage"}
    NOUN, SOURCE = "images", "camera"
    UNREADABLE = DropReason.CORRUPT_IMAGE

    def __init__(self, node: ManagedNode[Any], topic: str, **arguments: Any) -> None:
        values: ImageParameters = node.values
        self._max_pixels = values.max_image_pixels
        self._camera = topic
        is_compressed = values.image_transport is ImageTransport.COMPRESSED
        names_compressed = topic.endswith(COMPRESSED)
        source = f"{topic}{COMPRESSED}" if is_compressed and not names_compressed else topic
        message = CompressedImage if is_compressed or names_compressed else Image
        super().__init__(node, source, message=message, **arguments)

    def read(self, message: Any) -> Pixels:
        if isinstance(message, CompressedImage):
            return read_compressed(message.data, message.format, self._max_pixels)
        return read_message(message, self._max_pixels, find_other=find_encoding)

    def origin(self, header: Any, payload: Payload, age_s: float) -> Origin:
        assert isinstance(payload, Pixels)
        return Origin(header, self._camera, payload.height, payload.width, payload, age_s)
