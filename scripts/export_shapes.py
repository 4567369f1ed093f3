#!/usr/bin/env python3
"""Writes the shapes detector as an ONNX file. Engines run this file without torch.

    scripts/run python scripts/export_shapes.py [--output FILE]

The exporter folds each batch norm into its convolution. It multiplies the convolution's weights by a scale for each
channel. The file holds the scales, and the trained weights in half precision. Engines multiply both when they
load the file, and get the same bits. Run this again after scripts/train_shapes.py has written other weights.

NNCF and onnx2torch want plain weights, so they do not take this file. A model in int8 is made from torch's network.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from split_infer_ros.buffers.host_arrays import FLOAT32, Floats  # noqa: E402
from split_infer_ros.buffers.layout import TensorSpec  # noqa: E402
from split_infer_ros.engines.engine import Engine  # noqa: E402
from split_infer_ros.engines.exported_part import export  # noqa: E402
from split_infer_ros.models import shapes  # noqa: E402
from split_infer_ros.models.catalogue import find_model  # noqa: E402
from split_infer_ros.models.shapes_file import FILE, LABELS, NAME  # noqa: E402
from split_infer_ros.models.weights import load_weights  # noqa: E402
from split_infer_ros.split.load import load_model  # noqa: E402
from split_infer_ros.split.model_spec import ModelSpec  # noqa: E402
from split_infer_ros.split.split_points import INPUT, OUTPUT  # noqa: E402

SCOPES = "pkg.torch.onnx.name_scopes"  # under this key, the exporter notes the modules from which a node comes


def trained_network() -> nn.Module:
    """Returns the network with its weights in float32."""
    entry = find_model(NAME)
    network = entry.build()
    load_weights(network, entry, "default")
    return network.eval()


def exported(network: nn.Module) -> onnx.ModelProto:
    """Returns the network as it is exported for the engines.

    The last node of a block gets the block's name, like a split point in torch. The tensors that cross there get the
    names that they have in torch. So a backbone from the file fits a head in torch, and the other way round.
    """
    images = TensorSpec("images", (3, shapes.HEIGHT, shapes.WIDTH), FLOAT32)
    proto: onnx.ModelProto = export(network, [images], name=NAME, engine=Engine.ONNXRUNTIME)
    graph = proto.graph
    last = {_block_of(node): node for node in graph.node}
    tensors = _tensors_of_blocks()
    names = {node.output[0]: tensors[block][-1] for block, node in last.items() if block in tensors}
    ends = [*tensors[INPUT], *tensors[OUTPUT]]
    names |= dict(zip([value.name for value in (*graph.input, *graph.output)], ends, strict=True))
    for value in (*graph.input, *graph.output):
        value.name = names[value.name]
    for block, node in last.items():
        node.name = block
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    return proto


def _tensors_of_blocks() -> dict[str, tuple[str, ...]]:
    """Returns the names of the tensors at each of torch's split points, by the block that ends there."""
    points = load_model(ModelSpec(NAME, device="cpu", on_torch=True)).split_points
    return {(point.name, *point.aliases)[-1]: tuple(tensor.name for tensor in point.tensors) for point in points}


def without_notes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Removes the exporter's notes about its work, such as paths of this machine, and adds the class names."""
    graph = proto.graph
    del graph.value_info[:]
    for part in (proto, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""
    helper.set_model_props(proto, {"names": str(dict(enumerate(LABELS)))})
    return proto


def halved(proto: onnx.ModelProto, network: nn.Module) -> onnx.ModelProto:
    """Stores the weights of convolutions in half precision. The graph calculates the folded weights from them.

    Raises:
        ValueError: the calculated weights would have other bits.
    """
    state, scales = network.state_dict(), _scales(network)
    graph = proto.graph
    stored: list[onnx.TensorProto] = []
    making: list[onnx.NodeProto] = []
    for tensor in graph.initializer:
        if tensor.name not in scales:
            stored.append(tensor)
            continue
        name, scale = tensor.name, scales[tensor.name]
        half = state[name].numpy().astype(np.float16)
        if not np.array_equal(half.astype(np.float32) * scale, numpy_helper.to_array(tensor)):
            raise ValueError(f"{name} is not a weight in half precision times the scale of its batch norm.")
        parts = [f"{name}/half", f"{name}/scale"]
        stored += map(numpy_helper.from_array, (half, scale), parts)
        making += [
            helper.make_node("Cast", parts[:1], [f"{name}/float"], name=f"{name}/float", to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"{name}/float", parts[1]], [name], name=name),
        ]
    nodes = [*making, *graph.node]
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(stored)
    graph.node.extend(nodes)
    return proto


def _scales(network: nn.Module) -> dict[str, Floats]:
    """Returns the scale (channels, 1, 1, 1) of each weight with a folded batch norm, by the weight's name."""
    scales: dict[str, Floats] = {}
    for path, sequence in network.named_modules():
        layers = list(sequence.named_children()) if isinstance(sequence, nn.Sequential) else []
        for (name, _), (_, norm) in itertools.pairwise(layers):
            if isinstance(norm, nn.BatchNorm2d) and norm.running_var is not None:
                scale = norm.weight.detach().numpy() / np.sqrt(norm.running_var.numpy() + np.float32(norm.eps))
                scales[f"{path}.{name}.weight"] = scale[:, None, None, None]
    return scales


def _block_of(node: onnx.NodeProto) -> str:
    notes = {each.key: each.value for each in node.metadata_props}
    return str(ast.literal_eval(notes[SCOPES])[1])


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=FILE)
    path = parser.parse_args().output
    network = trained_network()
    proto = without_notes(halved(exported(network), network))
    onnx.checker.check_model(proto, full_check=True)
    path.write_bytes(proto.SerializeToString(deterministic=True))
    print(f"{path} has {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
