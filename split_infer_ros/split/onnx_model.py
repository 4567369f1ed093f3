"""An ONNX model that is split on request."""

from __future__ import annotations

import copy
import hashlib
import itertools
import threading
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor, nn

from split_infer_ros.engines.engine import Engine, find_provider
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.engines.executable import make_executable
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.per_image import PerImagePart
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.onnx_graphs.graph import OnnxGraph
from split_infer_ros.onnx_graphs.nodes import num_elements
from split_infer_ros.onnx_graphs.shapes import without_weights
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.onnx_batches import prepare_batches
from split_infer_ros.split.onnx_split_points import find_onnx_split_points
from split_infer_ros.split.split_points import INPUT, OUTPUT, SplitPoint

CPU = torch.device("cpu")
GPU_PROVIDER = "CUDA"  # of ONNX Runtime, where the user names none


class OnnxModel(SplitModel):
    """An ONNX model and its split points. Both partitions run in float32, on ONNX Runtime or OpenVINO.

    Args:
        entry: the model's entry.
        graph: the whole model, which takes float32 (N, C, H, W).
        execution_config: how both partitions run. One of engine torch stands for the engine that runs ONNX models.

    Raises:
        ConfigurationError: the model does not take images, takes a fixed number of them other than 1, or does not run.
    """

    kind = "an ONNX model"

    def __init__(self, entry: ModelEntry, graph: OnnxGraph, *, execution_config: ExecutionConfig | None = None) -> None:
        self._source: OnnxModel | None = None
        if len(graph.inputs) != 1 or len(graph.inputs[0].shape) != 4 or graph.inputs[0].dtype != torch.float32:
            found = "; ".join(map(str, graph.inputs)) or "none"
            raise ConfigurationError(
                f"{graph.name} has the inputs {found}; a model takes one input, float32 images (N, C, height, width)."
            )
        self.native_engine = _native_engine()
        config = _of_onnx(execution_config or ExecutionConfig())
        self._prepared = prepare_batches(graph, entry.image_shape, lambda part: make_executable(part, config))
        super().__init__(
            entry,
            CPU,
            torch.float32,
            execution_config=config,
            split_points=find_onnx_split_points(self._prepared.graph, self._prepared.dataflow, self._prepared.shapes),
            lock=threading.RLock(),
        )

    def placed(
        self, device: torch.device, dtype: torch.dtype, execution_config: ExecutionConfig | None = None
    ) -> OnnxModel:
        """Returns the same model with its backbone on another device or engine.

        Raises:
            ConfigurationError: the precision is another one than fp32.
        """
        if dtype != torch.float32:
            raise ConfigurationError(
                f"{self.entry.name} is an ONNX model, which runs in the precision of its file: take precision fp32."
            )
        other = copy.copy(self)
        other._source = self  # keeps this model alive, so that others who ask for it share it
        other.device = device
        config = self.execution_config if execution_config is None else _of_onnx(execution_config)
        if device.type != "cpu" and config == ExecutionConfig(engine=Engine.ONNXRUNTIME):
            config = replace(config, provider=GPU_PROVIDER)
        other.execution_config = config
        other._reset_caches()
        return other

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that identify the model's operations, their order and their shapes."""
        skeleton = without_weights(self._prepared.graph.proto, max_elements=0)
        shape = f"{self.entry.image_shape} {self._prepared.graph.inputs[0].shape[0]}"
        return hashlib.sha256(skeleton.SerializeToString(deterministic=True) + shape.encode()).hexdigest()[:12]

    @property
    def parameters(self) -> int:
        """How many parameters the whole model has."""
        return self._parameters_of(0, len(self._prepared.dataflow.nodes))

    def parameters_before(self, name: str) -> int:
        """Returns how many parameters the partition before the split point of that name has."""
        return self._parameters_of(0, self.split_point(name).position)

    def best_device(self) -> torch.device:
        """Returns the first GPU if there is one and ONNX Runtime can use it, else the CPU."""
        if torch.cuda.is_available() and self.native_engine is Engine.ONNXRUNTIME:
            with suppress(ConfigurationError):
                find_provider(GPU_PROVIDER)
                return torch.device("cuda", 0)
        return CPU

    def segments(self) -> tuple[tuple[nn.Module, ...], tuple[nn.Module, ...]]:
        """Returns the segments between neighbouring split points as the backbone and as the head runs them."""
        cutter = self._prepared.cutter
        pieces = [
            cutter.cut(f"{self.entry.name} from {first.name} to {last.name}", first.position, last.position)
            for first, last in itertools.pairwise(self.split_points)
        ]
        backbones = [self._executable(piece, self.execution_config, self.device) for piece in pieces]
        heads = [self._executable(piece, self._head_execution_config, CPU) for piece in pieces]
        return tuple(backbones), tuple(heads)

    @property
    def default_split_point(self) -> str:
        """The last one before ``output``, or ``output`` if less crosses there.

        In a YOLO, the branches of its maps give nearly twice as much as the boxes that are made of them.
        """
        return min(self.split_points[-2:], key=lambda point: point.bytes_per_image).name

    @property
    def note(self) -> str:
        """What a user should know about how the model runs; empty if there is nothing."""
        notes = [self._prepared.note]
        names = [split_point.name for split_point in self.split_points]
        if names == [INPUT, OUTPUT]:
            notes.append(
                f"{self.entry.name} has no split point but its ends, so the backbone or the head runs it as a whole."
            )
        elif names == [INPUT]:
            notes.append(f"{self.entry.name} has no split point but its input, so the head runs it as a whole.")
        return " ".join(filter(None, notes))

    @property
    def head_engine(self) -> Engine:
        """The engine that runs the head."""
        return self._head_execution_config.engine

    @property
    def _head_execution_config(self) -> ExecutionConfig:
        """The backbone's configuration, or that of the same engine on the CPU."""
        return self.execution_config if self.device.type == "cpu" else _of_onnx(ExecutionConfig())

    def _make_backbone(self, split_point: SplitPoint) -> nn.Module:
        if split_point.name == INPUT:
            return _PassThrough()
        part = self._prepared.cutter.cut(f"{self.entry.name} up to {split_point.name}", 0, split_point.position)
        return self._executable(part, self.execution_config, self.device)

    def _make_head(self, split_point: SplitPoint) -> nn.Module:
        if split_point.name == OUTPUT:
            return _PassThrough()
        end = len(self._prepared.dataflow.nodes)
        part = self._prepared.cutter.cut(f"{self.entry.name} from {split_point.name}", split_point.position, end)
        return self._executable(part, self._head_execution_config, CPU)

    def _executable(self, part: OnnxGraph, config: ExecutionConfig, device: torch.device) -> nn.Module:
        executable = make_executable(part, config, device=device)
        takes_batches = self._prepared.graph.inputs[0].shape[0] is None
        return executable if takes_batches or not isinstance(executable, EnginePart) else PerImagePart(executable)

    def _parameters_of(self, first: int, last: int) -> int:
        weights = {str(tensor.name): tensor for tensor in self._prepared.graph.proto.graph.initializer}
        used = self._prepared.cutter.weights_of(first, last)
        return sum(num_elements(weights[name]) for name in used)


class _PassThrough(nn.Module):
    """The partition on the other side of a model's end: it has no operations."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Returns the tensors as they are."""
        return tensors


def _native_engine() -> Engine:
    """Returns the installed engine that runs ONNX models; ONNX Runtime if both or none are installed."""
    has_only_openvino = Engine.OPENVINO.is_installed and not Engine.ONNXRUNTIME.is_installed
    return Engine.OPENVINO if has_only_openvino else Engine.ONNXRUNTIME


def _of_onnx(config: ExecutionConfig) -> ExecutionConfig:
    """Returns a config of an engine that runs ONNX models."""
    return ExecutionConfig(engine=_native_engine()) if config.engine is Engine.TORCH else config
