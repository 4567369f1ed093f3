"""Makes an ONNX graph executable with the engine that an execution config names."""

from __future__ import annotations

from split_infer_ros.engines.decoded_part import make_decoded
from split_infer_ros.engines.engine import Engine, check_device
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.micro_batches import MicroBatchPart
from split_infer_ros.engines.onnxruntime_part import OnnxRuntimePart
from split_infer_ros.engines.openvino_part import OpenVinoPart
from split_infer_ros.engines.precision import Precision
from split_infer_ros.engines.precision_checks import check_precision, keeps_float32
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.runtime.device import CPU, Device


def make_executable(
    graph: OnnxGraph,
    config: ExecutionConfig,
    *,
    device: Device = CPU,
    is_whole: bool = False,
    gives_results: bool = False,
) -> EnginePart:
    """Makes an ONNX model, or a part of one, executable.

    Args:
        graph: the graph to execute.
        config: names the engine, the precision and the micro-batch.
        device: the device on which the part runs.
        is_whole: whether the part is the whole network, so that no other partition computes beside it.
        gives_results: whether the part's outputs are the model's results. If the engine converts the graph to 16 bits,
            the decoding of these results then stays in float32. With OpenVINO, the decoding runs on the CPU.

    Raises:
        ConfigurationError: the engine is not installed, does not run on the device, does not compute in the precision,
            or cannot run the part.
    """
    if config.engine is Engine.TORCH:
        raise ConfigurationError(
            f"{graph.name} is an ONNX model, which engine torch does not run: take engine onnxruntime or openvino."
        )
    check_device(config.engine, config.provider, device)
    check_precision(config.precision, config.engine, config.provider, is_file=True)
    part = make_part(graph, config=config, device=device, is_whole=is_whole, gives_results=gives_results)
    return in_micro_batches(part, config)


def make_part(
    graph: OnnxGraph, *, config: ExecutionConfig, device: Device, is_whole: bool, gives_results: bool
) -> EnginePart:
    """Makes a graph executable for whole batches. The caller has checked the engine; see ``make_executable``."""

    def make(piece: OnnxGraph, precision: Precision) -> EnginePart:
        if config.engine is Engine.ONNXRUNTIME:
            return OnnxRuntimePart(piece, config.provider, device, precision, is_whole)
        # Decoding computes in float32, which an NPU may not have. The values are in the CPU's memory anyway.
        return OpenVinoPart(piece, precision, provider=config.provider if precision is config.precision else "")

    converts = config.precision in (Precision.FP16, Precision.BF16) and keeps_float32(config.engine, config.provider)
    if converts and gives_results:
        return make_decoded(graph, config.precision, make)
    return make(graph, config.precision)


def in_micro_batches(part: EnginePart, config: ExecutionConfig) -> EnginePart:
    """Returns a part that computes in the config's micro-batches, if the config has any.

    A part stays as it is if its results' shapes are not known before a run. So does a part with a graph that takes a
    fixed number of images.
    """
    can_run_so = part.can_run_into and part.graph.inputs[0].shape[0] is None
    return MicroBatchPart(part, config.micro_batch) if config.micro_batch and can_run_so else part
