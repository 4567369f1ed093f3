"""ONNX graphs become graphs of torch: which operations, which constants, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx2torch")

from onnx import helper  # noqa: E402
from onnx_nets import IMAGE_SHAPE, assert_near, chunks, exported, filters, images, net, reused, run_each  # noqa: E402
from small_graphs import graph_of  # noqa: E402

from split_infer_ros.errors import ConfigurationError  # noqa: E402
from split_infer_ros.onnx.constant_shapes import with_constant_shapes  # noqa: E402
from split_infer_ros.onnx.conversion.grid_sample import add_missing_operators  # noqa: E402
from split_infer_ros.onnx.conversion.to_torch import import_graph  # noqa: E402
from split_infer_ros.onnx.graph import OnnxGraph  # noqa: E402
from split_infer_ros.onnx.shapes import infer_shapes  # noqa: E402


def imported(graph: OnnxGraph) -> fx.GraphModule:
    shapes = infer_shapes(graph, IMAGE_SHAPE)
    return import_graph(with_constant_shapes(graph, IMAGE_SHAPE), shapes)


def sampled() -> OnnxGraph:
    """Reads a map at places that depend on the images."""
    nodes = [
        helper.make_node("Conv", ["images", "filters"], ["map"], strides=[4, 4]),  # (N, 2, 4, 4)
        helper.make_node("Tanh", ["map"], ["pairs"]),
        helper.make_node("Transpose", ["pairs"], ["places"], perm=[0, 2, 3, 1]),
        helper.make_node("GridSample", ["images", "places"], ["read"], mode="bilinear", align_corners=0),
        helper.make_node("ReduceMean", ["read"], ["result"], axes=[2, 3], keepdims=0),
    ]
    return graph_of(
        nodes,
        inputs={"images": ["batch", *IMAGE_SHAPE]},
        outputs={"result": ["batch", 3]},
        constants={"filters": filters(2, 3, 4, 4)},
    )


def symbolic_net() -> OnnxGraph:
    return exported(net(), by_dynamo=False, is_symbolic=True)


@pytest.mark.parametrize("make", [symbolic_net, chunks, sampled, reused])
def test_plain_operations_give_the_same_results(make: Callable[[], OnnxGraph]) -> None:
    """What depends on shapes is constant, so that nothing asks a tensor for its values while frames flow."""
    graph = make()
    module = imported(graph)
    modules = dict(module.named_modules())
    kinds = {type(modules[str(node.target)]) for node in module.graph.find_nodes(op="call_module")}
    assert all(kind.__module__.startswith("torch.nn.") for kind in kinds)
    with torch.inference_mode():
        found = module(images(3))
        assert_near(found if isinstance(found, (tuple, list)) else (found,), run_each(graph, images(3)))


def test_product_with_its_own_sigmoid_is_one_module() -> None:
    module = imported(chunks())
    kinds = [type(each) for each in module.modules()]
    assert kinds.count(nn.SiLU) == 2
    assert nn.Sigmoid not in kinds


def test_weights_are_parameters() -> None:
    """A weight that is no parameter would not be counted, and would not follow the precision."""
    module = imported(symbolic_net())
    assert sum(each.numel() for each in module.parameters()) >= sum(each.numel() for each in net().parameters())
    assert not any(each.is_floating_point() for each in module.buffers())


def test_operators_that_the_library_lacks_are_named() -> None:
    nodes = [
        helper.make_node("Conv", ["images", "filters"], ["map"], strides=[4, 4]),
        helper.make_node("Det", ["map"], ["areas"]),
        helper.make_node("ThresholdedRelu", ["areas"], ["result"]),
    ]
    graph = graph_of(
        nodes,
        inputs={"images": ["batch", *IMAGE_SHAPE]},
        outputs={"result": ["batch", 2]},
        constants={"filters": filters(2, 3, 4, 4)},
    )
    with pytest.raises(
        ConfigurationError,
        match=r"^small cannot run on engine torch, because onnx2torch lacks operators of it \(Det, ThresholdedRelu\): "
        r"take engine onnxruntime or openvino\.$",
    ):
        imported(graph)


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    graph = symbolic_net()
    monkeypatch.setattr("split_infer_ros.runtime.optional_packages.importlib.import_module", missing)
    with pytest.raises(ConfigurationError, match="pip install onnx onnx2torch onnxruntime, or take engine"):
        imported(graph)


def test_operators_are_added_once() -> None:
    add_missing_operators()
    add_missing_operators()
