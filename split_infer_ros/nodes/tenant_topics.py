"""The topics of one tenant: its images or point clouds in, its own detections out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from split_infer_ros.models.detections import Detections
from split_infer_ros.models.takes import Takes
from split_infer_ros.nodes.enable_service import EnableService
from split_infer_ros.nodes.frame_input import FrameInput
from split_infer_ros.nodes.image_input import ImageInput
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.parameters.tenants import TENANT, TenantsParameters
from split_infer_ros.nodes.result_publisher import ResultPublisher
from split_infer_ros.server.admission import Intake
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.rate_limiter import RateLimiter


class TenantTopics:
    """Publishes ``NAME/detections``, ``NAME/detections/image`` and ``NAME/vision_info``; subscribes to one camera.

    For point clouds, it publishes ``NAME/detections_3d`` and ``NAME/vision_info``.

    If the tenant's head is in another process, that process publishes the results, and this class only subscribes.

    Args:
        node: the node ``tenants``.
        name: the tenant's name.
        takes: what the tenant's frames hold.
        intake: takes the tenant's frames.
        enable: the service ``~/enable``. While it is off, frames are dropped as ``paused``.
        reaches_head: says whether a head in another process would get a batch.

    Attributes:
        takes: the argument.
        limiter: limits the tenant's frames per second.
    """

    def __init__(
        self,
        node: ManagedNode[TenantsParameters],
        name: str,
        takes: Takes,
        intake: Intake,
        enable: EnableService,
        reaches_head: Callable[[], bool],
    ) -> None:
        self.takes = takes
        self.limiter = RateLimiter(node.values.max_rate_hz)
        self._node = node
        self._intake = intake
        self._enable = enable
        self._reaches_head = reaches_head
        self._results: ResultPublisher | None = None
        if not node.values.has_own_heads:
            self._results = ResultPublisher(
                node, topic_prefix=f"{name}/", parameter_prefix=f"{TENANT}.{name}.", takes=takes
            )
            self._results.start()
        self._input: FrameInput | None = None
        self._topic: str | None = None

    @property
    def mismatch(self) -> str:
        """A sentence for the user if the publishers of the camera's topic send no images; else empty."""
        return self._input.mismatch if self._input is not None else ""

    def set_model(self, model: str, labels: Sequence[str]) -> None:
        """Publishes the name of the tenant's model, and the name of each of its labels, by index."""
        if self._results is not None:
            self._results.set_model(model, labels)

    def subscribe(self, topic: str | None) -> None:
        """Subscribes to a topic of frames, instead of the topic before. None ends the subscription."""
        if topic == self._topic:
            return
        if self._input is not None:
            self._input.close()
        self._input = self._topic = None  # also if the next subscription fails
        if topic is not None:
            self._input = _input_for(self.takes)(
                self._node,
                topic,
                intake=self._intake,
                limiter=self.limiter,
                enable=self._enable,
                is_listened_to=self._is_listened_to,
            )
        self._topic = topic

    def publish(self, origin: Origin, detections: Detections, labels: Sequence[str]) -> None:
        """Publishes a frame's result. Only for a head in this process.

        Args:
            origin: the frame's header and image.
            detections: the frame's detections.
            labels: the class names of the model that found the detections, by index. After a change of models, that may
                still be the model before.
        """
        assert self._results is not None, "the head is in another process"
        self._results.publish(origin, detections, labels)

    def close(self) -> None:
        """Removes the tenant from all topics."""
        self.subscribe(None)
        if self._results is not None:
            self._results.close()

    def _is_listened_to(self) -> bool:
        return self._reaches_head() if self._results is None else self._results.has_subscribers


def _input_for(takes: Takes) -> Callable[..., FrameInput]:
    if takes is Takes.IMAGES:
        return ImageInput
    from split_infer_ros.nodes.points_input import PointsInput  # only here: few tenants have point clouds

    return PointsInput
