"""Node ``head``: receives handles to features, publishes detections."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from split_infer_ros.autotuning.best_known import find_best_known
from split_infer_ros.autotuning.engine_choice import open_engines
from split_infer_ros.engines.engine import Engine, check_engine
from split_infer_ros.engines.precision import Precision, parse_precision
from split_infer_ros.engines.precision_checks import is_made_for
from split_infer_ros.measurements.database import Database
from split_infer_ros.models.detections import Detections
from split_infer_ros.nodes.head_diagnostics import HeadDiagnostics
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.parameters.common import (
    ComputeParameters,
    FinishParameters,
    ModelParameters,
    WeightsParameters,
)
from split_infer_ros.nodes.parameters.table import like, parameter
from split_infer_ros.nodes.process import run
from split_infer_ros.nodes.result_publisher import ResultPublisher
from split_infer_ros.nodes.transports import INTRA_PROCESS, RECEIVERS, Receiver
from split_infer_ros.nodes.vision_info import LABELS_PARAMETER
from split_infer_ros.runtime.num_threads import default_head_threads
from split_infer_ros.server.frame import Handle
from split_infer_ros.server.head_stage import HeadStage
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.load import choose_device
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_engines import choose_precision, untuned_engine
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.weight_streaming.hollow_loading import load_streamable

DIAGNOSTICS_PERIOD_S = 1.0


@dataclass(frozen=True)
class HeadParameters(ModelParameters, FinishParameters, WeightsParameters):
    """The parameters of the node ``head``.

    Raises:
        ConfigurationError: there is no such engine.
    """

    PURPOSE: ClassVar[str] = "How the head computes, and where features come from"

    engine: str = like(
        ComputeParameters,
        "engine",
        description="What executes the head: auto, torch, onnxruntime, openvino, openvino:DEVICE, or "
        "onnxruntime:PROVIDER for one that runs on the CPU. auto: what tuning or the backbone measured, else torch, or "
        "onnxruntime for an ONNX file.",
    )
    precision: str = like(
        ComputeParameters,
        "precision",
        description="The precision in which the head computes. One that the engine does not support is refused. If the "
        "processor has no instructions for it, fp32 is used. With bf16 or fp32 (and the like), nothing is refused.",
    )
    transport: str = parameter(
        INTRA_PROCESS,
        "How features come from the backbone, which needs the same value. Only intra_process has detections/image.",
        choices=tuple(RECEIVERS),
        read_only=True,
    )

    def __post_init__(self) -> None:
        check_engine(self.engine)

    @property
    def model_spec(self) -> ModelSpec:
        """The model as the head loads it: on the CPU and for its engine."""
        return replace(super().model_spec, on_torch=self.engine == Engine.TORCH.value)


class HeadNode(ManagedNode[HeadParameters]):
    """Subscribes to ``features``; publishes ``detections``, the latched ``vision_info`` and ``/diagnostics``.

    With transport ``intra_process`` it also publishes ``detections/image``. Its diagnostics tell whether it stands by
    for another head, which handles it refused, which detections it left out, and what streamed weights cost.
    """

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__("head", HeadParameters, status_parameters=(LABELS_PARAMETER,), **node_arguments)
        self._model: SplitModel | None = None
        self._results: ResultPublisher | None = None
        self._stage: HeadStage | None = None
        self._receiver: Receiver | None = None
        self._diagnostics: HeadDiagnostics | None = None

    def configure(self) -> None:
        values = self.values
        self._model = load_streamable(values.model_spec, values.weights_settings)
        self.add_cleanup(self._unload)
        engines = open_engines(values.engine, values.weights_settings.weights_residency)
        precision = self._choose_precision(self._model)
        tuned = find_best_known(self._model, Database.named(values.tuning_database), precision, engines=engines)
        untuned = untuned_engine(self._model, precision)
        execution_config = tuned.execution_config.with_engine(values.engine, untuned)
        spec = replace(values.model_spec, execution_config=execution_config)
        self._model = load_streamable(spec, values.weights_settings)
        if self._model.note:
            self.get_logger().warning(self._model.note)
        engine, precision = self._model.head_engine.value, self._model.head_precision
        self.get_logger().info(f"The head of {values.model} runs on {engine} in {precision.value}.")
        # only within one process do handles carry the image on which to draw
        self._results = ResultPublisher(self, has_images=values.transport == INTRA_PROCESS)
        self._results.start()
        self.add_cleanup(self._results.close)
        self._results.set_model(self._model.entry.name, self._model.entry.labels)
        num_threads = values.head_threads or default_head_threads(choose_device("auto"), tuned.num_threads[1])
        expected = tuned.fill_in(StageSettings(batch_size=0))  # the backbone's, unless the user set others
        self._stage = HeadStage.open(
            self._model,
            values.limits,
            deliver=self._publish,
            on_error=self.warn,
            num_threads=num_threads,
            weights=values.weights_settings,
            batch_size=expected.batch_size or 1,
            split_point=expected.split_point,
        )
        self.add_cleanup(self._stage.stop)  # a signal may come before this node is active
        self._diagnostics = HeadDiagnostics(self, self._stage)
        self.add_cleanup(self._diagnostics.close)
        timer = self.create_steady_timer(DIAGNOSTICS_PERIOD_S, self._publish_diagnostics)
        self.add_cleanup(lambda: self.destroy_timer(timer))

    def activate(self) -> None:
        assert self._stage is not None
        assert self._model is not None
        self._stage.start()
        self._receiver = RECEIVERS[self.values.transport](self, self._model, self._stage)

    def deactivate(self) -> None:
        if self._receiver is not None:
            self._receiver.stop_receiving()
        if self._stage is not None:
            self._stage.stop()
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def apply(self, values: HeadParameters) -> None:
        if self._stage is not None:
            self._stage.configure(values.weights_settings)
            self._stage.limits = values.limits

    def _choose_precision(self, model: SplitModel) -> Precision:
        """Returns the precision of the head, and logs why it is another one than the user's.

        In one process, the backbone on a GPU may have the same parameter. So a CPU that is slow in it takes fp32.
        """
        wanted = parse_precision(self.values.precision)
        accepted = wanted if is_made_for(wanted[0], model.device) else (*wanted, Precision.FP32)
        precision, reason = choose_precision(model, accepted, self.values.engine)
        if reason:
            self.get_logger().warning(f"head: {reason}")
        return precision

    def _unload(self) -> None:
        """Lets go of the model and of what refers to it."""
        self._model = self._results = self._stage = self._diagnostics = None

    def _publish(self, handle: Handle, index: int, detections: Detections) -> None:
        assert self._results is not None
        assert self._model is not None
        self._results.publish(handle.origins[index], detections, self._model.entry.labels)

    def _publish_diagnostics(self) -> None:
        if self._diagnostics is not None:
            self._diagnostics.publish(is_standby=self._receiver is not None and self._receiver.is_standby)


def main() -> int:
    """Runs this node alone."""
    return run([HeadNode])


if __name__ == "__main__":
    sys.exit(main())
