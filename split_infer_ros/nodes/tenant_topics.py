"""One tenant's place in ROS: its camera's images in, its own detections out."""

from __future__ import annotations

from collections.abc import Sequence

from rclpy.qos import QoSProfile
from vision_msgs.msg import Detection2DArray

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ImageError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections
from split_infer_ros.nodes.conversions import detections_message
from split_infer_ros.nodes.enable import Enable
from split_infer_ros.nodes.image_input import ImageInput
from split_infer_ros.nodes.intra_process import IntraProcessPublisher
from split_infer_ros.nodes.labels import Labels
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.overlay import Overlay
from split_infer_ros.pipeline.frame import Origin
from split_infer_ros.pipeline.rate_limiter import RateLimiter
from split_infer_ros.serving.shared_pipeline import SharedPipeline


class TenantTopics:
    """Publishes ``NAME/detections``, ``NAME/detections/image`` and ``NAME/vision_info``; hears one camera, or none.

    Args:
        node: the tenants' node.
        name: of the tenant.
        parameters: in front of the parameter that lists its labels.
        pipeline: that takes its frames.
        enable: whose being off has frames dropped as ``paused``.

    Attributes:
        limiter: how many of its frames a second are taken.
    """

    full = False  # a tenant's frames never wait outside

    def __init__(self, node: ManagedNode, name: str, parameters: str, pipeline: SharedPipeline, enable: Enable) -> None:
        self._node = node
        self._name = name
        self._parameters = parameters
        self._pipeline = pipeline
        self._enable = enable
        self.limiter = RateLimiter(node.values.max_rate_hz)
        self._detections = IntraProcessPublisher(node, Detection2DArray, f"{name}/detections", QoSProfile(depth=10))
        self._overlay = Overlay(node, (), node.warn, f"{name}/")
        self._told: tuple[str, Sequence[str]] | None = None
        self._labels: Labels | None = None
        self._heard: str | None = None
        self._input: ImageInput | None = None

    def tell(self, model: str, labels: Sequence[str]) -> None:
        """Say which model it has, and what that one's labels mean."""
        if self._told == (model, labels):
            return
        if self._labels is not None:
            self._labels.close()
        self._overlay.labels = labels
        self._labels = Labels(self._node, model, labels, f"{self._name}/", self._parameters)
        self._told = model, labels

    def listen(self, topic: str | None) -> None:
        """Hear that camera from now on, instead of another one."""
        if topic == self._heard:
            return
        if self._input is not None:
            self._input.close()
        self._input = None if topic is None else ImageInput(self._node, topic, self, self.limiter, self._enable)
        self._heard = topic

    def deliver(self, origin: Origin, detections: Detections, labels: Sequence[str]) -> None:
        """A frame's result is there, by labels that may be of a model before the present one."""
        self._detections.publish(detections_message(detections, labels, origin.header))
        self._overlay.show(origin, detections)

    def close(self) -> None:
        """Leave all topics."""
        self.listen(None)
        self._overlay.close()
        if self._labels is not None:
            self._labels.close()
        self._detections.destroy()

    def wait_for_room(self, timeout_s: float) -> bool:
        """There is always room."""
        return True

    def submit(self, pixels: Pixels, origin: Origin, now: float) -> None:
        """A frame came in."""
        self._pipeline.submit(self._name, pixels, origin, now)

    def refuse(self, error: ImageError, now: float) -> None:
        """A frame came in that is not to be had."""
        self._pipeline.refuse(self._name, error, now)

    def missed(self, count: int, reason: DropReason) -> None:
        """Frames were sent and never reached us."""
        self._pipeline.missed(self._name, count, reason)
