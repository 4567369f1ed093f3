"""Node ``head``: takes handles, publishes detections."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.qos import QoSProfile
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from split_infer_ros.autotuning.best_known import find_best_known
from split_infer_ros.measurements.database import Database
from split_infer_ros.models.detections import Detections
from split_infer_ros.nodes.conversions import detections_message
from split_infer_ros.nodes.endpoints import advertise
from split_infer_ros.nodes.intra_process import IntraProcessPublisher
from split_infer_ros.nodes.labels import LABELS, Labels
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.overlay import Overlay
from split_infer_ros.nodes.parameters.common import FinishParameters, ModelParameters, WeightsParameters
from split_infer_ros.nodes.parameters.table import parameter
from split_infer_ros.nodes.process import run
from split_infer_ros.nodes.transports import RECEIVERS, Receiver
from split_infer_ros.nodes.watch import LEFT_OUT, weights_facts
from split_infer_ros.pipeline.frame import Handle
from split_infer_ros.pipeline.head_stage import HeadStage
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.runtime.num_threads import default_head_threads
from split_infer_ros.split.load import choose_device, load_model

DIAGNOSTICS_PERIOD_S = 1.0


@dataclass(frozen=True)
class HeadParameters(ModelParameters, FinishParameters, WeightsParameters):
    """What the head can be told."""

    transport: str = parameter(
        "intra_process",
        "The way from the backbone; as the backbone has it. Only intra_process has detections/image.",
        choices=tuple(RECEIVERS),
        read_only=True,
    )


class HeadNode(ManagedNode):
    """Hears ``features``; publishes ``detections`` and, in one process, ``detections/image``; ``vision_info`` once.

    On ``/diagnostics`` it says whether it stands by for another head, which handles it refused, which detections it
    left out as they cannot be, and of weights that are read what that takes.
    """

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__("head", HeadParameters, told=(LABELS,), **node_arguments)
        self._stage: HeadStage | None = None
        self._receiver: Receiver | None = None

    def set_up(self) -> None:
        values = self.values
        self._model = load_model(values.model_spec)
        self.on_tear_down(self._forget)
        tuned = find_best_known(self._model, Database.named(values.tuning_database))
        self._model = load_model(replace(values.model_spec, execution_config=tuned.execution_config))
        self._labels = self._model.entry.labels
        self._detections = IntraProcessPublisher(self, Detection2DArray, "detections", QoSProfile(depth=10))
        self.on_tear_down(self._detections.destroy)
        self._overlay: Overlay | None = None
        if self.values.transport == "intra_process":  # elsewhere there is no image to draw on
            self._overlay = Overlay(self, self._labels, self.warn)
            self.on_tear_down(self._overlay.close)
        self.on_tear_down(Labels(self, self._model.entry.name, self._labels).close)
        threads = values.head_threads or default_head_threads(choose_device("auto"), tuned.num_threads[1])
        likely = tuned.fill_in(StageSettings(batch_size=0)).batch_size or 1  # as the backbone has it unless told
        self._stage = HeadStage(
            self._model, values.limits, self._deliver, self.warn, threads, values.weights_settings, likely
        )
        self.on_tear_down(self._stage.stop)  # should a signal come before this node is active
        self._refused_before = self._left_out_before = 0
        self._diagnostics = advertise(self, DiagnosticArray, "/diagnostics", QoSProfile(depth=10))
        self.on_tear_down(lambda: self.destroy_publisher(self._diagnostics))
        timer = self.every(DIAGNOSTICS_PERIOD_S, self._diagnose)
        self.on_tear_down(lambda: self.destroy_timer(timer))

    def begin(self) -> None:
        assert self._stage is not None
        self._stage.start()
        self._receiver = RECEIVERS[self.values.transport](self, self._model, self._stage)

    def end(self) -> None:
        assert self._receiver is not None
        self._receiver.leave()
        if self._stage is not None:
            self._stage.stop()
        self._receiver.close()
        self._receiver = None

    def change(self, values: HeadParameters) -> None:
        if self._stage is not None:
            self._stage.configure(values.weights_settings)
            self._stage.limits = values.limits

    def _forget(self) -> None:
        """Give back what only this node held."""
        self._stage = None
        del self._model

    def _deliver(self, handle: Handle, index: int, detections: Detections) -> None:
        origin = handle.origins[index]
        self._detections.publish(detections_message(detections, self._labels, origin.header))
        if self._overlay is not None:
            self._overlay.show(origin, detections)

    def _diagnose(self) -> None:
        """Say how many handles were refused, and detections left out, and why; a warning while it goes on."""
        assert self._stage is not None
        refused, left_out = dict(self._stage.refused), dict(self._stage.left_out)
        total, impossible = sum(refused.values()), sum(left_out.values())
        status = DiagnosticStatus(name=self.get_fully_qualified_name().lstrip("/"), level=DiagnosticStatus.OK)
        status.message = "Handles are taken as they come."
        if self._receiver is not None and self._receiver.stands_by:
            status.message = "It stands by: another head takes the batches. It takes over when that one ends."
        if impossible > self._left_out_before:
            status.level = DiagnosticStatus.WARN
            status.message = LEFT_OUT
        if total > self._refused_before:
            status.level = DiagnosticStatus.WARN
            status.message = "Handles were refused: they lead nowhere, or to what this head cannot read."
        self._refused_before, self._left_out_before = total, impossible
        facts = {"model": self.values.model, "transport": self.values.transport}
        weights = self._stage.weights
        if weights is not None:
            residency = self.values.weights_residency
            facts |= weights_facts(residency, weights.memory_bytes, weights.bandwidth / 1e6, weights.stalled_s)
        facts |= {f"refused: {reason}": str(count) for reason, count in sorted(refused.items())}
        facts |= {f"left out: {reason}": str(count) for reason, count in sorted(left_out.items())}
        status.values = [KeyValue(key=key, value=value) for key, value in facts.items()]
        header = Header(stamp=self.get_clock().now().to_msg())
        self._diagnostics.publish(DiagnosticArray(header=header, status=[status]))


def main() -> int:
    """Run this node alone."""
    return run([HeadNode])


if __name__ == "__main__":
    sys.exit(main())
