"""Makes one graph of two models whose n-th layers are fused (paper 001, §II-B, Algorithm 2)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

from torch import fx, nn

from split_infer_ros.buffers.host_arrays import as_tensor
from split_infer_ros.engines.compute import Backbone, Features, Images
from split_infer_ros.vision_ops.fused_layers import FusedLayers
from split_infer_ros.vision_ops.merged_layers import MergedLayer

RunFused = Callable[[], dict[str, Features]]


def fuse_graphs(first: fx.GraphModule, second: fx.GraphModule) -> fx.GraphModule:
    """Makes one graph of two models, in which one launch computes the n-th layers of both (001, Algorithm 2).

    The layers that one model has more than the other run alone. The new graph shares the modules of both.

    Args:
        first, second: graphs with layers that ``merge_layers`` has replaced. They are not changed.

    Returns:
        A graph that maps the inputs of the first model and those of the second to a pair: the result of each.
    """
    root = nn.Module()
    root.add_module("first", first)
    root.add_module("second", second)
    joint = fx.Graph()
    models = [_CopiedModel(first, "first", joint), _CopiedModel(second, "second", joint)]
    for number, pair in enumerate(zip(*(model.layers for model in models), strict=False)):
        inputs = [model.copy_up_to(layer) for model, layer in zip(models, pair, strict=True)]
        modules = [model.merged_layer(layer) for model, layer in zip(models, pair, strict=True)]
        root.add_module(f"fused_{number}", FusedLayers(*modules))
        fused = joint.call_module(f"fused_{number}", tuple(inputs))
        for place, (model, layer) in enumerate(zip(models, pair, strict=True)):
            model.copies[layer] = joint.call_function(operator.getitem, (fused, place))
    joint.output(tuple(model.copy_rest() for model in models))
    return fx.GraphModule(root, joint)


def fuse_backbones(models: Mapping[str, Backbone], inputs: Mapping[str, Images]) -> RunFused | None:
    """Returns a function that runs two models with fused layers on their inputs; None if no layers are fused.

    Both models run once, which measures whether fusing their layers pays, as long as there is time for searches.

    Args:
        models: the backbones by name. Two graphs with merged layers can be fused.
        inputs: the images of each model.
    """
    graphs = [model for model in models.values() if isinstance(model, fx.GraphModule) and _has_merged_layers(model)]
    if len(graphs) != len(models) or len(graphs) != 2:
        return None
    joint = fuse_graphs(*graphs)
    images = [as_tensor(inputs[name]) for name in models]
    joint(*images)
    if not any(isinstance(module, FusedLayers) and module.is_fused for module in joint.modules()):
        return None
    return lambda: dict(zip(models, joint(*images), strict=True))


def _has_merged_layers(model: nn.Module) -> bool:
    return any(isinstance(module, MergedLayer) for module in model.modules())


class _CopiedModel:
    """Copies the nodes of one model into a joint graph, in their order.

    Attributes:
        layers: the model's merged layers, in the order in which they run.
        copies: the copy of each node so far.
    """

    def __init__(self, model: fx.GraphModule, name: str, joint: fx.Graph) -> None:
        self._model, self._name, self._joint = model, name, joint
        nodes = list(model.graph.nodes)
        self.layers: Sequence[fx.Node] = [
            node
            for node in nodes
            if node.op == "call_module" and isinstance(model.get_submodule(str(node.target)), MergedLayer)
        ]
        self.copies: dict[fx.Node, fx.Node] = {}
        self._left = [node for node in nodes if node.op != "placeholder"]
        for node in nodes:
            if node.op == "placeholder":
                self._copy(node)

    def merged_layer(self, layer: fx.Node) -> MergedLayer:
        """Returns the module of a layer."""
        module = self._model.get_submodule(str(layer.target))
        assert isinstance(module, MergedLayer)
        return module

    def copy_up_to(self, layer: fx.Node) -> fx.Node:
        """Copies all nodes before a layer that are left. Returns the copy of the layer's input."""
        place = self._left.index(layer)
        for node in self._left[:place]:
            self._copy(node)
        self._left = self._left[place + 1 :]
        return self.copies[layer.all_input_nodes[0]]

    def copy_rest(self) -> fx.node.Argument:
        """Copies all nodes that are left. Returns the model's result in the joint graph."""
        for node in self._left[:-1]:
            self._copy(node)
        result: fx.node.Argument = fx.node.map_arg(self._left[-1].args[0], self.copies.__getitem__)
        return result

    def _copy(self, node: fx.Node) -> None:
        copy = self._joint.node_copy(node, self.copies.__getitem__)
        if node.op in ("call_module", "get_attr"):
            copy.target = f"{self._name}.{node.target}"
        elif node.op == "placeholder":
            copy.target = copy.name  # which is unique, while inputs of two models may have one name
        self.copies[node] = copy
