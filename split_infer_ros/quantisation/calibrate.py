"""Quantises a graph with NNCF. It runs the graph on images to measure how large the graph's values are."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from split_infer_ros.buffers.host_arrays import Floats
from split_infer_ros.engines.precision_checks import has_vnni
from split_infer_ros.errors import ConfigurationError, first_line
from split_infer_ros.onnx.graph import shape_of
from split_infer_ros.runtime.usage_reports import stop_usage_reports

if TYPE_CHECKING:
    import onnx

# Results of these operators, or of activations that contain them, lie between a few tenths below zero and any number
# above it. Codes that are symmetric about zero would waste nearly half of their range.
LOPSIDED = ("HardSwish", "Mish", "Gelu", "Elu", "Selu", "Celu", "LeakyRelu", "PRelu", "Swish", "Erf", "Softplus")
GATES = ("Sigmoid", "HardSigmoid")  # SiLU and HardSwish multiply a gate's result by the gate's input

PACKAGES = ("onnx", "onnxruntime", "openvino", "nncf")  # packages that quantising needs


def check_packages() -> None:
    """Checks that the packages for quantising can be imported. Before, it turns off the packages' usage reports.

    Raises:
        ConfigurationError: a package cannot be imported.
    """
    import importlib

    stop_usage_reports()
    for package in PACKAGES:
        try:
            with unchanged_logging():
                importlib.import_module(package)
        except ImportError as error:
            raise ConfigurationError(
                f"quantising needs the Python package {package}, which cannot be imported ({error}): "
                "pip install onnx onnxscript openvino 'nncf>=3.0'."
            ) from error


def calibrate(proto: onnx.ModelProto, images: Iterable[Floats], *, count: int, ignored: Sequence[str]) -> Any:
    """Quantises a graph to int8, and returns it as an ``onnx.ModelProto``. NNCF shows the progress.

    A processor without VNNI adds two products in 16 bits. With weights of 8 bits, the sums would overflow. On such a
    processor, weights therefore get 7 bits.

    Args:
        proto: the graph in float32. It takes one input, and is not changed.
        images: the inputs, float32 (1, C, H, W). They are read several times.
        count: number of images.
        ignored: the names of the nodes that stay in float32.

    Raises:
        ConfigurationError: a package is missing, or NNCF cannot quantise the graph.
    """
    check_packages()
    import nncf
    from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters, OverflowFix

    name = str(proto.graph.input[0].name)
    fixed = shape_of(proto.graph.input[0].type.tensor_type)[0] or 1  # number of images that the graph takes at a time
    has_attention = any(node.op_type == "LayerNormalization" for node in proto.graph.node)
    nncf.set_log_level(logging.ERROR)
    try:
        with unchanged_logging():
            return nncf.quantize(
                proto,
                nncf.Dataset(images, lambda image: {name: np.repeat(image, fixed, axis=0)}),
                subset_size=count,
                preset=nncf.QuantizationPreset.MIXED if has_lopsided_activations(proto.graph) else None,
                target_device=nncf.TargetDevice.CPU,
                model_type=nncf.ModelType.TRANSFORMER if has_attention else None,
                ignored_scope=nncf.IgnoredScope(names=list(ignored)) if ignored else None,
                advanced_parameters=AdvancedQuantizationParameters(
                    overflow_fix=OverflowFix.DISABLE if has_vnni() else OverflowFix.ENABLE
                ),
            )
    except Exception as error:  # NNCF and ONNX Runtime raise many types of errors
        raise ConfigurationError(f"{proto.graph.name} cannot be quantised: {first_line(error, 300)}.") from error


def has_lopsided_activations(graph: onnx.GraphProto) -> bool:
    """Returns whether a graph has activations such as SiLU, with results slightly below zero and far above it."""
    makers = {str(name): node for node in graph.node for name in node.output}
    for node in graph.node:
        if node.op_type in LOPSIDED:
            return True
        gates = [makers[name] for name in map(str, node.input) if name in makers and makers[name].op_type in GATES]
        if node.op_type == "Mul" and any(gate.input[0] in node.input for gate in gates):
            return True
    return False


@contextmanager
def unchanged_logging() -> Iterator[None]:
    """Restores the settings of logging when the context ends.

    NNCF makes the root logger drop all messages but errors, for every module of the process.
    """
    root = logging.getLogger()
    logger_class, level = logging.getLoggerClass(), root.level
    filters, handlers = list(root.filters), [(handler, handler.level) for handler in root.handlers]
    try:
        yield
    finally:
        logging.setLoggerClass(logger_class)
        root.setLevel(level)
        root.filters, root.handlers = filters, [handler for handler, _ in handlers]
        for handler, handler_level in handlers:
            handler.setLevel(handler_level)
