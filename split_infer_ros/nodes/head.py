"""Node ``head``: receives handles to features, publishes detections."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from split_infer_ros.autotuning.opening import open_model
from split_infer_ros.engines.precision import Precision, parse_precision
from split_infer_ros.engines.precision_checks import is_made_for
from split_infer_ros.measurements.database import Database
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.nodes.head_diagnostics import HeadDiagnostics
from split_infer_ros.nodes.managed import ManagedNode, configured
from split_infer_ros.nodes.parameters.common import ONE_MODEL, ModelParameters
from split_infer_ros.nodes.parameters.images import ImageParameters
from split_infer_ros.nodes.parameters.table import part
from split_infer_ros.nodes.process import run
from split_infer_ros.nodes.result_publisher import ResultPublisher
from split_infer_ros.nodes.transports import INTRA_PROCESS, RECEIVERS, Receiver
from split_infer_ros.nodes.vision_info import LABELS_PARAMETER
from split_infer_ros.runtime.cache_pruning import limit_cache
from split_infer_ros.runtime.cores import StageCores
from split_infer_ros.runtime.num_threads import default_head_threads
from split_infer_ros.server.frame import Handle
from split_infer_ros.server.head_stage import HeadStage
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.setting import like, setting
from split_infer_ros.split.load import choose_device
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.weight_streaming.settings import WeightsSettings

DIAGNOSTICS_PERIOD_S = 1.0
LISTENERS_PERIOD_S = 0.1  # how often a lazy head checks whether somebody subscribes to its results
END_S = 5.0  # a thread that takes longer to end is left alone: a user's decoder may hang


@dataclass(frozen=True)
class HeadParameters(ModelParameters):
    """The parameters of the node ``head``.

    Raises:
        ConfigurationError: the engine is unknown, or the process may not use one of the cores.
    """

    PURPOSE: ClassVar[str] = "How the head computes, and where features come from"

    model: ModelSpec = part(ModelSpec(device="cpu"), without=("device",), **ONE_MODEL)
    engine: str = like(
        SharedSettings,
        "engine",
        description="What executes the head: auto, torch, onnxruntime, openvino, openvino:DEVICE, or "
        "onnxruntime:PROVIDER for one that runs on the CPU. auto: what tuning or the backbone measured, else torch, or "
        "onnxruntime for an ONNX file.",
        purpose="",
    )
    precision: str = like(
        SharedSettings,
        "precision",
        default=Precision.FP32.value,
        description="The precision in which the head computes. One that the engine does not support is refused. If the "
        "processor has no instructions for it, fp32 is used. With bf16 or fp32 (and the like), nothing is refused. "
        "auto and auto_int8 mean fp32.",
        purpose="",
    )
    transport: str = setting(
        INTRA_PROCESS,
        "How features come from the backbone, which needs the same value. Only intra_process has detections/image.",
        choices=tuple(RECEIVERS),
        read_only=True,
    )
    head_threads: int = like(SharedSettings, "head_threads")
    head_cores: str = like(SharedSettings, "head_cores")
    backbone_cores: str = like(
        StageSettings,
        "backbone_cores",
        description="The cores of a backbone in this process. The head then uses what was measured on as many cores.",
        purpose="",
    )
    lazy: bool = like(ImageParameters, "lazy", purpose="")
    limits: Limits = part(Limits())
    weights: WeightsSettings = part(WeightsSettings())

    def __post_init__(self) -> None:
        super().__post_init__()
        StageCores.parse(self.backbone_cores, self.head_cores)  # before a node of this process loads a model

    @property
    def cores(self) -> StageCores:
        """The cores of each stage."""
        return StageCores.parse(self.backbone_cores, self.head_cores)


class HeadNode(ManagedNode[HeadParameters]):
    """Subscribes to ``features``; publishes ``detections``, the latched ``vision_info`` and ``/diagnostics``.

    With transport ``intra_process``, the node also publishes ``detections/image``. The diagnostics tell whether this
    head stands by for another one. They count the handles that it refused and the detections that it left out. They
    also tell how much memory streamed weights take, how fast they are read, and how long layers wait for them.

    A lazy head takes batches only while somebody subscribes to its results. Without a head, a lazy backbone computes
    nothing.
    """

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__("head", HeadParameters, status_parameters=(LABELS_PARAMETER,), **node_arguments)
        self._model: SplitModel | None = None
        self._results: ResultPublisher | None = None
        self._stage: HeadStage | None = None
        self._receiver: Receiver | None = None
        self._diagnostics: HeadDiagnostics | None = None

    @property
    def model(self) -> SplitModel:
        """The model, while the node is configured.

        Raises:
            ConfigurationError: the node is not configured.
        """
        return configured(self._model, "The head")

    @property
    def stage(self) -> HeadStage:
        """The head's stage, while the node is configured.

        Raises:
            ConfigurationError: the node is not configured.
        """
        return configured(self._stage, "The head")

    def configure(self) -> None:
        values = self.values
        limit_cache(values.cache_bytes)
        self.add_cleanup(self._unload)
        cores = values.cores
        with cores.backbone.bound():
            opened = open_model(
                values.model_spec,
                values.weights,
                Database.named(values.tuning_database),
                engine=values.engine,
                precision=values.precision,
                accepts=self._accepted,
            )
        self._model, tuned = opened.model, opened.best_known
        for note in opened.notes:
            self.get_logger().warning(f"head: {note}")
        engine, precision = self._model.head_config.engine.value, self._model.head_config.precision
        self.get_logger().info(f"The head of {values.model.name} runs on {engine} in {precision.value}.")
        # handles carry the image, which detections/image needs, only within one process
        self._results = ResultPublisher(self, has_images=values.transport == INTRA_PROCESS)
        self._results.start()
        self.add_cleanup(self._results.close)
        self._results.set_model(self._model.entry.name, self._model.entry.labels)
        num_threads = values.head_threads or default_head_threads(choose_device("auto"), tuned.head_threads, cores.head)
        expected = tuned.fill_in(StageSettings(batch_size=0))  # the backbone's settings, unless the user set others
        self._stage = HeadStage.open(
            self._model,
            values.limits,
            deliver=self._publish,
            on_error=self.warn,
            num_threads=num_threads,
            cores=cores.head,
            weights=values.weights,
            batch_size=expected.batch_size or 1,
            split_point=expected.split_point,
        )
        self.add_cleanup(self._stage.stop)  # a signal may come before this node is active
        self._diagnostics = HeadDiagnostics(self, self._stage)
        self.add_cleanup(self._diagnostics.close)
        self.call_every(DIAGNOSTICS_PERIOD_S, self._publish_diagnostics)
        self.call_every(LISTENERS_PERIOD_S, self._follow_listeners)

    def activate(self) -> None:
        if self._is_wanted():
            self._begin()

    def deactivate(self) -> None:
        self._end()

    def apply(self, values: HeadParameters) -> None:
        if self._stage is not None:
            self._stage.configure(values.weights)
            self._stage.limits = values.limits

    def _is_wanted(self) -> bool:
        assert self._results is not None
        return not self.values.lazy or self._results.has_subscribers

    def _follow_listeners(self) -> None:
        if not self.is_active:  # an executor may keep the timer's callback until after the clean-up
            return
        is_wanted = self._is_wanted()
        if is_wanted and self._receiver is None:
            self._begin()
        elif not is_wanted and self._receiver is not None:
            self._end()

    def _begin(self) -> None:
        """Takes batches from now on."""
        assert self._stage is not None
        assert self._model is not None
        self._stage.start()
        self._receiver = RECEIVERS[self.values.transport](self, self._model, self._stage)

    def _end(self) -> None:
        """Takes no more batches, and finishes those that have come."""
        if self._receiver is not None:
            self._receiver.stop_receiving()
        if self._stage is not None and not self._stage.stop(END_S):
            self.get_logger().warning(
                f"The head still works on a batch after {END_S:g} s, and is left alone. Does its decoder hang?"
            )
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def _accepted(self, model: SplitModel) -> tuple[Precision, ...]:
        """Returns the precisions that the head may use, best first.

        A backbone on a GPU in the same process may have the same parameter. So a CPU that is slow in it may use fp32.
        """
        wanted = parse_precision(self.values.precision)
        return wanted if is_made_for(wanted[0], model.device) else (*wanted, Precision.FP32)

    def _unload(self) -> None:
        """Drops the model and what refers to it."""
        self._model = self._results = self._stage = self._diagnostics = None

    def _publish(self, handle: Handle, index: int, detections: Detections) -> None:
        assert self._results is not None
        assert self._model is not None
        self._results.publish(handle.origins[index], detections, self._model.entry.labels)

    def _publish_diagnostics(self) -> None:
        if self._diagnostics is not None:
            self._diagnostics.publish(is_standby=self._receiver is not None and self._receiver.is_standby)


def main() -> int:
    """Runs a process with this node alone. Returns the exit code."""
    return run([HeadNode])


if __name__ == "__main__":
    sys.exit(main())
