"""Makes a part of a network executable by the engine that an execution config names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.engines.decoded_part import make_decoded
from split_infer_ros.engines.engine import Engine, check_device, find_provider, import_for
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.micro_batches import MicroBatchPart
from split_infer_ros.engines.onnx_export import exported_part
from split_infer_ros.engines.onnxruntime_part import OnnxRuntimePart
from split_infer_ros.engines.openvino_part import OpenVinoPart
from split_infer_ros.engines.precision import Precision
from split_infer_ros.engines.precision_checks import check_precision, keeps_float32
from split_infer_ros.engines.torch_part import make_torch_part
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx_graphs.graph import OnnxGraph
from split_infer_ros.vision_ops.implementations import ImplementationChoice, use_implementation

CPU = torch.device("cpu")


def make_executable(
    part: fx.GraphModule | OnnxGraph,
    config: ExecutionConfig,
    *,
    inputs: Sequence[TensorSpec] = (),
    device: torch.device = CPU,
    name: str = "the network",
    is_whole: bool = False,
    gives_results: bool = False,
) -> nn.Module:
    """Makes a part of a prepared network executable.

    Args:
        part: maps tensors to a tuple of tensors. It is taken over; modules that it shares are not changed.
        config: names the engine. How torch runs convolutions and what compiles them counts for engine torch alone;
            ``segments`` are not looked at.
        inputs: the specs of the tensors that a traced part takes, which other engines than torch need.
        device: where the part runs.
        name: of the network, for messages about a traced part.
        is_whole: whether the part is the whole network, so that no other partition computes beside it.
        gives_results: whether the part ends with the model's results. Where an engine converts a graph to 16 bits, what
            decodes these results stays in float32. With OpenVINO, it then runs on the CPU.

    Raises:
        ConfigurationError: the engine is not installed, does not run on the device, does not compute in the precision,
            or cannot run the part.
    """
    engine = config.engine
    if isinstance(part, OnnxGraph):
        if engine is Engine.TORCH:
            raise ConfigurationError(
                f"{part.name} is an ONNX model, which engine torch does not run: take engine onnxruntime or openvino."
            )
        check_device(engine, config.provider, device)
        check_precision(config.precision, engine, config.provider, is_file=True)
        return _in_micro_batches(_make_part(config, device, is_whole, gives_results, part), config)
    if engine is Engine.TORCH or not _computes(part):
        return make_torch_part(part, config.convolutions, config.compiler)
    check_device(engine, config.provider, device)
    check_precision(config.precision, engine, config.provider)
    version = str(import_for(engine, engine.value).__version__).partition("-")[0]
    provider = find_provider(engine, config.provider)
    executable = exported_part(
        part,
        inputs,
        partial(_make_part, config, device, is_whole, gives_results),
        name=name,
        engine=engine,
        version=f"{version}-{provider}",
        precision=config.precision,
    )
    return _in_micro_batches(executable, config)


def _make_part(
    config: ExecutionConfig, device: torch.device, is_whole: bool, gives_results: bool, graph: OnnxGraph
) -> EnginePart:
    def make(piece: OnnxGraph, precision: Precision) -> EnginePart:
        if config.engine is Engine.ONNXRUNTIME:
            return OnnxRuntimePart(piece, config.provider, device, precision, is_whole)
        # Decoding computes in float32, which an NPU may not have. The tensors are in the CPU's memory anyway.
        return OpenVinoPart(piece, precision, provider=config.provider if precision is config.precision else "")

    converts = config.precision in (Precision.FP16, Precision.BF16) and keeps_float32(config.engine, config.provider)
    if converts and gives_results:
        return make_decoded(graph, config.precision, make)
    return make(graph, config.precision)


def _in_micro_batches(part: EnginePart, config: ExecutionConfig) -> EnginePart:
    """Returns the part as it runs with the config's micro-batches, for which its results' shapes must be known.

    A part whose graph takes a fixed number of images stays as it is.
    """
    can_run_so = part.can_run_into and part.graph.inputs[0].shape[0] is None
    return MicroBatchPart(part, config.micro_batch) if config.micro_batch and can_run_so else part


def _computes(part: fx.GraphModule) -> bool:
    """Returns whether a part has any operation. At the ends of a model, partitions have none."""
    return any(node.op not in ("placeholder", "get_attr", "output") for node in part.graph.nodes)


class OperatorOverride(nn.Module):
    """A part whose vision operators run in one given implementation.

    Args:
        part: what is run.
        operators: the implementation.
    """

    def __init__(self, part: nn.Module, operators: ImplementationChoice) -> None:
        super().__init__()
        self._part, self._operators = part, operators

    def forward(self, *tensors: Tensor) -> Any:
        """Runs the part."""
        with use_implementation(self._operators):
            return self._part(*tensors)


class PartChain(nn.Module):
    """Parts that run one after the other. Each takes the results of the part before it.

    Args:
        parts: in order.

    Attributes:
        parts: as given.
    """

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Runs all parts and returns the results of the last one."""
        for part in self.parts:
            tensors = part(*tensors)
        return tensors
