"""Publishes the results of one model on their topics: detections, the image with its boxes, the labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rclpy.qos import QoSProfile
from vision_msgs.msg import Detection2DArray

from split_infer_ros.models.detections import Detections
from split_infer_ros.models.takes import Takes
from split_infer_ros.nodes.conversions import detections_message
from split_infer_ros.nodes.intra_process import IntraProcessPublisher
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.overlay import Overlay
from split_infer_ros.nodes.serialised_detections import agrees_with_rclpy, serialise_detections
from split_infer_ros.nodes.vision_info import VisionInfoPublisher
from split_infer_ros.server.frame import Origin

_QOS = QoSProfile(depth=10)


class ResultPublisher:
    """Publishes ``detections``, ``detections/image`` and the latched ``vision_info``.

    For point clouds, it publishes ``detections_3d`` in place of the first two.

    Args:
        node: the node that publishes.
        topic_prefix: text in front of the topics' names, such as ``front/``.
        parameter_prefix: text in front of the parameter that lists the labels, such as ``tenant.front.``.
        has_images: whether results come with their source images. If not, there is no ``detections/image``.
        takes: what the model's frames hold.
    """

    def __init__(
        self,
        node: ManagedNode[Any],
        *,
        topic_prefix: str = "",
        parameter_prefix: str = "",
        has_images: bool = True,
        takes: Takes = Takes.IMAGES,
    ) -> None:
        self._node = node
        self._topic_prefix = topic_prefix
        self._parameter_prefix = parameter_prefix
        self._detections = (_publisher if takes is Takes.IMAGES else _publisher_3d)(node, topic_prefix)
        is_drawn = has_images and takes is Takes.IMAGES
        self._overlay = Overlay(node, node.warn, topic_prefix) if is_drawn else None
        self._vision_info: VisionInfoPublisher | None = None
        self._published_model: tuple[str, Sequence[str]] | None = None

    def start(self) -> None:
        """Starts the thread that draws."""
        if self._overlay is not None:
            self._overlay.start()

    def set_model(self, model: str, labels: Sequence[str]) -> None:
        """Publishes a model's name and labels, unless they are published already.

        Args:
            model: the model's name.
            labels: the name of each label, by index.
        """
        if self._published_model == (model, labels):
            return
        if self._vision_info is not None:
            self._vision_info.close()
        if self._overlay is not None:
            self._overlay.labels = labels
        self._vision_info = VisionInfoPublisher(
            self._node, model, labels, topic_prefix=self._topic_prefix, parameter_prefix=self._parameter_prefix
        )
        self._published_model = model, labels

    @property
    def has_subscribers(self) -> bool:
        """True while somebody subscribes to detections, or to ``detections/image``."""
        return self._detections.has_subscribers or (self._overlay is not None and self._overlay.has_subscribers)

    def publish(self, origin: Origin, detections: Detections, labels: Sequence[str]) -> None:
        """Publishes a frame's result.

        Args:
            origin: the frame's header and image.
            detections: the frame's detections.
            labels: the class names of the model that found the detections, by index. After a change of models, that may
                still be the model before.
        """
        self._detections.publish((detections, labels, origin.header))
        if self._overlay is not None:
            self._overlay.submit(origin, detections)

    def close(self) -> None:
        """Ends the thread that draws and removes the publishers from their topics."""
        if self._vision_info is not None:
            self._vision_info.close()
        if self._overlay is not None:
            self._overlay.close()
        self._detections.destroy()


def _publisher(node: ManagedNode[Any], prefix: str) -> IntraProcessPublisher:
    serialise: Callable[..., Any] = serialise_detections if agrees_with_rclpy() else detections_message
    return IntraProcessPublisher(
        node,
        Detection2DArray,
        f"{prefix}detections",
        _QOS,
        to_message=lambda result: serialise(*result),
        to_object=lambda result: detections_message(*result),
    )


def _publisher_3d(node: ManagedNode[Any], prefix: str) -> IntraProcessPublisher:
    from vision_msgs.msg import Detection3DArray  # only here: few need it

    from split_infer_ros.nodes.detections_3d import detections_3d_message

    def make(result: tuple[Any, ...]) -> Any:
        return detections_3d_message(*result)

    return IntraProcessPublisher(
        node, Detection3DArray, f"{prefix}detections_3d", _QOS, to_message=make, to_object=make
    )
