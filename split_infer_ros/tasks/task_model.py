"""A task in the form of a model, so that the server schedules, times and accounts for it as for a network."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from split_infer_ros.buffers.host_arrays import FLOAT32, Array
from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.memory_cost.traffic import KernelTraffic
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.preprocessing.untouched import Untouched, batch_of
from split_infer_ros.runtime.device import CPU, Device
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.network import Network
from split_infer_ros.split.partition_cache import Partition
from split_infer_ros.split.split_points import OUTPUT, SplitPoint
from split_infer_ros.tasks.task import MAX_OBJECTS, Task

_CONFIG = ExecutionConfig(engine=Engine.ONNXRUNTIME)  # no engine runs a task; this one's threads need no torch
_FEATURES = "boxes", "scores", "labels", "count"


class TaskNetwork(Network):
    """A task as a network with one split point, ``output``. Its features are the objects that it found.

    They have a fixed size, as all features: boxes (``MAX_OBJECTS``, 4 or 6), scores, labels, and the number of objects.
    So they travel in slots to any head. The head decodes them, and computes nothing.

    Args:
        task: the task.
    """

    kind = "a task"
    native_engine = Engine.ONNXRUNTIME
    takes_arrays = True
    has_weights = False

    def __init__(self, task: Task) -> None:
        entry = ModelEntry(
            name=task.name,
            summary="a task",
            build=_build_nothing,
            weights=None,
            preprocess=Untouched(),
            labels=task.labels,
            default_split_point=OUTPUT,
            decode=_decode,
            decodes_arrays=True,
            takes=task.takes,
            check=task.check,
        )
        shapes = (MAX_OBJECTS, task.takes.box_numbers), (MAX_OBJECTS,), (MAX_OBJECTS,), (1,)
        dtypes: list[np.dtype[Any]] = [FLOAT32, FLOAT32, np.dtype(np.int64), np.dtype(np.int64)]
        facts = zip(_FEATURES, shapes, dtypes, strict=True)
        specs = tuple(TensorSpec(name, shape, dtype) for name, shape, dtype in facts)
        super().__init__(entry, (SplitPoint(OUTPUT, (), 1, specs, frozenset(_FEATURES)),), threading.RLock())
        self.task = task

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.task.identity.encode()).hexdigest()[:12]

    def num_parameters(self, before: str | None = None) -> int:
        return 0

    def best_device(self) -> Device:
        return CPU

    def fit(self, device: Device, config: ExecutionConfig | None) -> tuple[Network, ExecutionConfig]:
        if device.type != "cpu":
            raise ConfigurationError(
                f"{self.entry.name} runs on the CPU, and this node's device is {device}: run it in another node "
                "tenants, with device cpu."
            )
        return self, _CONFIG

    def head_config(self, device: Device, config: ExecutionConfig) -> ExecutionConfig:
        return config

    def backbone(
        self, split_point: SplitPoint, config: ExecutionConfig, device: Device, *, keeps_copy: bool = True
    ) -> Partition:
        return self._find

    def head(self, split_point: SplitPoint, config: ExecutionConfig) -> Partition:
        return _pass_on

    def segments(
        self, config: ExecutionConfig, device: Device, *, takes_float32: bool = False
    ) -> tuple[Partition, ...]:
        return ()

    def kernels_before(self, split_point: SplitPoint, config: ExecutionConfig) -> tuple[KernelTraffic, ...]:
        return ()

    def _find(self, batch: Sequence[Any]) -> tuple[Array, ...]:
        """Runs the task on a batch. Returns its objects in the form of the slot. Of too many, the best ones stay."""
        count = len(batch)
        features = tuple(np.zeros((count, *spec.shape), spec.dtype) for spec in self.split_points[0].tensors)
        boxes, scores, labels, counts = features
        for index, found in enumerate(self.task.run(batch)):
            best = np.argsort(-found.scores, kind="stable")[:MAX_OBJECTS]
            number = len(best)
            boxes[index, :number], scores[index, :number] = found.boxes[best], found.scores[best]
            labels[index, :number], counts[index] = found.labels[best], number
        return features


class TaskModel(SplitModel):
    """A task that serves as a model. It has one split point, runs on the CPU, and keeps no weights.

    Args:
        network: the task's ``TaskNetwork``.
        device: the CPU.
        execution_config: has no effect.

    Raises:
        ConfigurationError: the device is no CPU.
    """

    network: TaskNetwork

    @property
    def engine_text(self) -> str:
        return "task"

    def placed(self, device: Device, execution_config: ExecutionConfig | None = None) -> TaskModel:
        """Returns this task on a device, which must be the CPU. See ``SplitModel.placed``."""
        return TaskModel(self.network, device, execution_config)

    def blank_images(self, batch_size: int) -> Array:
        """Returns a batch of the task's examples."""
        return batch_of([self.blank_frame()] * batch_size)

    def blank_frame(self) -> Any:
        """Returns the task's example."""
        return self.network.task.example()

    def close(self) -> None:
        """Ends what the task has started."""
        self.network.task.close()


def _pass_on(*features: Array) -> tuple[Array, ...]:
    return features


def _decode(outputs: tuple[Array, ...], limits: Limits) -> list[Detections]:
    """Returns the objects of each frame that ``score_threshold`` and ``max_detections`` keep, in new memory."""
    found = []
    for boxes, scores, labels, (count,) in zip(*outputs, strict=True):
        kept = np.flatnonzero(scores[:count] >= limits.score_threshold)[: limits.max_detections]
        found.append(Detections(boxes[kept], scores[kept], labels[kept]))
    return found


def _build_nothing() -> Any:
    raise ConfigurationError("A task is not built as a network.")
