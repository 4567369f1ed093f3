"""Converts an ONNX model to a model of torch, which engine torch runs like any other."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import fx

from split_infer_ros.buffers.host_arrays import as_tensor
from split_infer_ros.engines.allowed_difference import allowed_difference
from split_infer_ros.engines.engine import Engine
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.entry import ModelEntry, outputs_of
from split_infer_ros.onnx.constant_shapes import with_constant_shapes
from split_infer_ros.onnx.conversion.inlining import ONNX_VALUE
from split_infer_ros.onnx.conversion.to_torch import import_graph
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.runtime.num_threads import tell_torch
from split_infer_ros.split.export import tidy
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.network import Network
from split_infer_ros.split.onnx_batches import difference_of_rows
from split_infer_ros.split.onnx_network import OnnxNetwork
from split_infer_ros.split.result_agreement import compare_results, is_classifier
from split_infer_ros.split.sample_images import sample_images
from split_infer_ros.split.split_points import INPUT, OUTPUT
from split_infer_ros.split.traced_split_points import SPLIT_NAMES, find_split_points, live_values, value_name
from split_infer_ros.split.verdict import Verdict


def to_torch(entry: ModelEntry, graph: OnnxGraph) -> tuple[ModelEntry, fx.GraphModule]:
    """Converts an ONNX model to a torch module. Compares the results of both once, on drawn scenes.

    The module's split points have the same names and tensors as those of the ONNX model. So one partition may run on
    torch, and the other on another engine.

    Args:
        entry: the model's ``ModelEntry``.
        graph: the whole model.

    Returns:
        An entry that names the default split point, and the module.

    Raises:
        ConfigurationError: the model takes no images or no batches, an operator cannot be converted, or the results
            differ by more than rounding.
    """
    tell_torch()  # this thread may be the first to use torch
    original = OnnxNetwork(entry, graph)
    model = SplitModel(original)
    prepared = original.prepared
    if prepared.graph.inputs[0].shape[0] is not None:
        raise ConfigurationError(
            f"{graph.name} cannot run on engine {Engine.TORCH.value}, which needs a model for any number of images: "
            f"take engine {original.native_engine.value}. {original.note}"
        )
    module = tidy(import_graph(with_constant_shapes(prepared.whole(), entry.image_shape), prepared.shapes))
    verdict = Verdict.on_torch(graph, entry.image_shape, model.execution_config)
    if not verdict.read():
        _compare(model, module)
        verdict.keep(True)
    _mark_split_points(original, module)
    points = find_split_points(module, entry.image_shape)
    default = min(points[-2:], key=lambda point: point.bytes_per_image)
    return replace(entry, default_split_point=default.name), module


def _compare(original: SplitModel, module: fx.GraphModule) -> None:
    """Compares the results of both models for drawn scenes: detections if these are enough, or else values.

    Raises:
        ConfigurationError: the results differ by more than rounding.
    """
    images = sample_images(original.entry)
    tensors = as_tensor(images)
    with torch.inference_mode():
        expected = tuple(original.head(INPUT)(images))
        try:
            found = outputs_of(module(tensors))
        except Exception as error:  # a module that onnx2torch made may raise anything
            reason = str(error).partition("\n")[0]
            raise _refusal(original.network, f"what onnx2torch made of it does not run ({reason})") from error
        difference = compare_results(
            original.entry, [found], [expected], classifies=is_classifier(original), measure=difference_of_rows
        )
        allowed = partial(allowed_difference, module, (tensors,), found)
        if not difference.agrees(allowed):
            raise _refusal(
                original.network,
                f"its results differ from those of engine {original.network.native_engine.value} {difference}, and "
                f"{difference.allowed_text(allowed)}",
            )


def _mark_split_points(original: OnnxNetwork, module: fx.GraphModule) -> None:
    """Writes the names of the ONNX model's split points into the nodes that follow them.

    A split point is left out if other values cross there in torch's graph, because operations were joined.
    """
    producers = original.prepared.dataflow.producers
    nodes = list(module.graph.nodes)
    places = {index: producers.get(node.meta.get(ONNX_VALUE, "")) for index, node in enumerate(nodes)}
    for point in original.split_points[1:-1]:
        last = max(index for index, place in places.items() if place is not None and place < point.position)
        crossing = [value_name(node) for node in live_values(nodes, last + 1)]
        if crossing == [spec.name for spec in point.tensors]:
            nodes[last + 1].meta[SPLIT_NAMES] = [point.name, *point.aliases]
    nodes[-1].meta[SPLIT_NAMES] = [OUTPUT]  # so that no other names are looked for


def _refusal(original: Network, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"{original.entry.name} cannot run on engine {Engine.TORCH.value}, because {reason}: take engine "
        f"{original.native_engine.value}."
    )
