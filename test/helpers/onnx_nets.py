"""Small networks as ONNX graphs, exported by torch's two exporters or made node by node. They need onnx."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from small_graphs import graph_of
from torch import Tensor, nn

from split_infer_ros.onnx.graph import OnnxGraph

IMAGE_SHAPE = (3, 16, 16)
ROUNDING = 1e-5
"""The most by which results may differ, as a share of the largest. An engine may fuse operations, and does so
differently when a graph is cut. Each result is a chain of at most ten sums of at most 144 products in float32, so its
error is below 10 x 144 x 2^-24 = 9e-5 of the sums of sizes in the worst case. Errors have both signs, so it stays far
below that: below 1e-6 where it was tried."""


class Block(nn.Module):
    """Two convolutions. Their input is added to their result."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.relu = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(x + self.conv2(self.relu(self.conv1(x))))  # type: ignore[no-any-return]


class Join(nn.Module):
    """Joins a feature map with a feature map of half its size."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.conv = nn.Upsample(scale_factor=2), nn.Conv2d(16, 8, 1)

    def forward(self, fine: Tensor, coarse: Tensor) -> Tensor:
        return self.conv(torch.cat((fine, self.up(coarse)), 1))  # type: ignore[no-any-return]


class Net(nn.Module):
    """A network with a chain of blocks, and with a feature map that is used long after it was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU())
        self.body = nn.Sequential(Block(), Block())
        self.down = nn.MaxPool2d(2)
        self.join = Join()
        self.flatten, self.classes = nn.Flatten(), nn.Linear(512, 10)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.body(self.stem(images))
        return self.classes(self.flatten(self.join(fine, self.down(fine))))  # type: ignore[no-any-return]


class Chunks(nn.Module):
    """A network with SiLU (in ONNX a sigmoid and a product), a split of channels, and a shape that is read."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.SiLU())
        self.last = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.stem(x).chunk(2, 1)
        found = self.last(torch.cat((second, first), 1))
        return found.view(found.shape[0], 4, -1).amax(2)  # type: ignore[no-any-return]


def net() -> Net:
    """Returns the network ``Net`` with the same weights at each call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Net().eval()


def images(count: int, seed: int = 0) -> Tensor:
    """Returns noise, float32 (count, *IMAGE_SHAPE)."""
    return torch.randn((count, *IMAGE_SHAPE), generator=torch.Generator().manual_seed(seed))


def exported(module: nn.Module, *, by_dynamo: bool, is_symbolic: bool, fixed: int = 1) -> OnnxGraph:
    """Exports a module, and returns its graph.

    Args:
        module: the module.
        by_dynamo: whether torch's newer exporter is used, which records the names of modules in metadata.
        is_symbolic: whether the batch size is a symbol.
        fixed: the batch size if it is a number.
    """
    example = torch.zeros((2 if is_symbolic else fixed, *IMAGE_SHAPE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one exporter is old, the other one reports what it does not need
        if by_dynamo:
            shapes = ({0: torch.export.Dim("batch")},) if is_symbolic else None
            program = torch.onnx.export(module, (example,), dynamo=True, dynamic_shapes=shapes, verbose=False)
            assert program is not None
            return OnnxGraph("net.onnx", program.model_proto)
        file = io.BytesIO()
        axes = {"images": {0: "batch"}} if is_symbolic else None
        torch.onnx.export(module, (example,), file, dynamo=False, input_names=["images"], dynamic_axes=axes)
    return OnnxGraph("net.onnx", onnx.load_model_from_string(file.getvalue()))


def as_paddle_writes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy of a model in which nodes ``Constant`` hold the weights, as in files of Paddle's exporter."""
    copied = onnx.ModelProto()
    copied.CopyFrom(proto)
    nodes = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in copied.graph.initializer]
    nodes += list(copied.graph.node)
    copied.graph.ClearField("initializer")
    copied.graph.ClearField("node")
    copied.graph.node.extend(nodes)
    return copied


def chunks() -> OnnxGraph:
    """Returns ``Chunks`` from torch's newer exporter, with the same weights at each call. Skips without onnxscript."""
    pytest.importorskip("onnxscript")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return exported(Chunks().eval(), by_dynamo=True, is_symbolic=True)


def filters(*shape: int, seed: int = 0) -> np.ndarray:
    """Returns seeded weights of a shape, float32."""
    return (0.3 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def integers(*values: int) -> np.ndarray:
    """Returns the values as a constant, int64 (number of values,)."""
    return np.array(values, np.int64)


def attention(batch: str | int = 1) -> OnnxGraph:
    """Returns a graph with attention of two heads. Constants hold the batch size.

    The batch dimension is in front; in the attention, it is behind the dimension of tokens. With a symbolic batch, the
    constants are for one image.
    """
    count = batch if isinstance(batch, int) else 1
    nodes = [
        helper.make_node("Conv", ["images", "filters"], ["map"], name="/stem/Conv", strides=[4, 4]),  # (1, 8, 4, 4)
        helper.make_node("Reshape", ["map", "as_rows"], ["rows"], name="/rows/Reshape"),  # (1, 8, 16)
        helper.make_node("Transpose", ["rows"], ["tokens"], name="/rows/Transpose", perm=[2, 0, 1]),  # (16, 1, 8)
        helper.make_node("Reshape", ["tokens", "as_heads"], ["heads"], name="/att/Reshape"),  # (16, 2, 4)
        helper.make_node("Transpose", ["heads"], ["queries"], name="/att/Transpose", perm=[1, 0, 2]),  # (2, 16, 4)
        helper.make_node("Transpose", ["heads"], ["keys"], name="/att/Transpose_1", perm=[1, 2, 0]),  # (2, 4, 16)
        helper.make_node("MatMul", ["queries", "keys"], ["scores"], name="/att/MatMul"),  # (2, 16, 16)
        helper.make_node("Softmax", ["scores"], ["shares"], name="/att/Softmax", axis=-1),
        helper.make_node("MatMul", ["shares", "queries"], ["mixed"], name="/att/MatMul_1"),  # (2, 16, 4)
        helper.make_node("Transpose", ["mixed"], ["back"], name="/att/Transpose_2", perm=[1, 0, 2]),  # (16, 2, 4)
        helper.make_node("Reshape", ["back", "as_tokens"], ["attended"], name="/att/Reshape_1"),  # (16, 1, 8)
        helper.make_node("Transpose", ["attended"], ["first"], name="/out/Transpose", perm=[1, 0, 2]),  # (1, 16, 8)
        helper.make_node("Concat", ["learned", "first"], ["all"], name="/out/Concat", axis=1),  # (1, 17, 8)
        helper.make_node("Slice", ["all", "begin", "end", "axes"], ["some"], name="/out/Slice"),  # (1, 9, 8)
        helper.make_node("Reshape", ["some", "flat"], ["result"], name="/out/Reshape"),  # (1, 72)
    ]
    constants = {
        "filters": filters(8, 3, 4, 4),
        "learned": filters(1, 1, 8, seed=1).repeat(count, 0),
        "as_rows": integers(count, 8, -1),
        "as_heads": integers(16, 2 * count, 4),
        "as_tokens": integers(16, count, 8),
        "begin": integers(0, 0),
        "end": integers(count, 9),
        "axes": integers(0, 1),
        "flat": integers(count, 72),
    }
    return graph_of(
        nodes, inputs={"images": [batch, *IMAGE_SHAPE]}, outputs={"result": [batch, 72]}, constants=constants
    )


def resized(batch: str | int = 1) -> OnnxGraph:
    """Returns a graph that resizes a feature map to a constant size, which includes the batch size."""
    nodes = [
        helper.make_node("Conv", ["images", "filters"], ["small"], strides=[4, 4]),  # (1, 8, 4, 4)
        helper.make_node("Resize", ["small", "", "", "size"], ["large"], mode="nearest"),  # (1, 8, 6, 10)
        helper.make_node("ReduceMean", ["large"], ["result"], axes=[2], keepdims=0),
    ]
    constants = {"filters": filters(8, 3, 4, 4), "size": integers(batch if isinstance(batch, int) else 1, 8, 6, 10)}
    return graph_of(
        nodes, inputs={"images": [batch, *IMAGE_SHAPE]}, outputs={"result": [batch, 8, 10]}, constants=constants
    )


def sized(batch: str | int = "batch") -> OnnxGraph:
    """Returns a graph that reads the batch size early and uses it late. This value has no batch dimension."""
    nodes = [
        helper.make_node("Shape", ["images"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["count"], axis=0),
        helper.make_node("Conv", ["images", "filters"], ["map"], strides=[4, 4]),  # (N, 8, 4, 4)
        helper.make_node("Relu", ["map"], ["positive"]),
        helper.make_node("Concat", ["count", "rest"], ["target"], axis=0),
        helper.make_node("Conv", ["positive", "more"], ["again"]),  # (N, 8, 4, 4)
        helper.make_node("Reshape", ["again", "target"], ["rows"]),  # (N, 8, 16)
        helper.make_node("MatMul", ["rows", "mixing"], ["result"]),  # (N, 8, 5)
    ]
    constants = {
        "filters": filters(8, 3, 4, 4),
        "more": filters(8, 8, 1, 1, seed=1),
        "mixing": filters(16, 5, seed=2),
        "zero": integers(0),
        "rest": integers(8, -1),
    }
    return graph_of(
        nodes, inputs={"images": [batch, *IMAGE_SHAPE]}, outputs={"result": [batch, 8, 5]}, constants=constants
    )


def branching(batch: str | int = "batch") -> OnnxGraph:
    """Returns a graph with an If. Its branches use a feature map and a weight from outside.

    The condition has no batch dimension.
    """
    value = helper.make_tensor_value_info

    def branch(name: str, operator: str) -> onnx.GraphProto:
        return helper.make_graph(
            [helper.make_node(operator, ["map", "factor"], [name])], name, [], [value(name, TensorProto.FLOAT, None)]
        )

    nodes = [
        helper.make_node("Conv", ["images", "filters"], ["map"], strides=[4, 4]),  # (N, 8, 4, 4)
        helper.make_node("Abs", ["map"], ["sizes"]),
        helper.make_node("ReduceMin", ["sizes"], ["least"], keepdims=0),  # ()
        helper.make_node("GreaterOrEqual", ["least", "nought"], ["condition"]),  # true
        helper.make_node("Neg", ["sizes"], ["negative"]),
        helper.make_node(
            "If", ["condition"], ["chosen"], then_branch=branch("product", "Mul"), else_branch=branch("sum", "Add")
        ),
        helper.make_node("Add", ["chosen", "negative"], ["added"]),
        helper.make_node("ReduceMean", ["added"], ["result"], axes=[2, 3], keepdims=0),
    ]
    constants = {"filters": filters(8, 3, 4, 4), "factor": filters(8, 1, 1, seed=1), "nought": np.zeros((), np.float32)}
    return graph_of(
        nodes, inputs={"images": [batch, *IMAGE_SHAPE]}, outputs={"result": [batch, 8]}, constants=constants
    )


def reused(batch: str | int = "batch") -> OnnxGraph:
    """Returns a graph with values that are used twice: an early output, which is used later too, and the images."""
    nodes = [
        helper.make_node("Conv", ["images", "filters"], ["map"], pads=[1, 1, 1, 1]),  # (N, 3, 16, 16)
        helper.make_node("Mul", ["map", "map"], ["square"]),
        helper.make_node("Conv", ["square", "filters"], ["second"], pads=[1, 1, 1, 1]),  # the same weight
        helper.make_node("Add", ["second", "map"], ["sum"]),
        helper.make_node("Sub", ["sum", "images"], ["last"]),
    ]
    shape: Sequence[str | int] = [batch, *IMAGE_SHAPE]
    return graph_of(
        nodes,
        inputs={"images": list(shape)},
        outputs={"last": list(shape), "square": list(shape)},
        constants={"filters": filters(3, 3, 3, 3)},
    )


def mixing(batch: str | int = 1) -> OnnxGraph:
    """Returns a graph that mixes the images of a batch: it subtracts their common mean."""
    nodes = [
        helper.make_node("Conv", ["images", "filters"], ["map"], strides=[4, 4]),
        helper.make_node("ReduceMean", ["map"], ["mean"], axes=[0, 2, 3], keepdims=1),
        helper.make_node("Sub", ["map", "mean"], ["centred"]),
        helper.make_node("Conv", ["centred", "more"], ["again"]),
        helper.make_node("ReduceMax", ["again"], ["result"], axes=[2, 3], keepdims=0),
    ]
    constants = {"filters": filters(8, 3, 4, 4), "more": filters(8, 8, 1, 1, seed=1)}
    return graph_of(
        nodes, inputs={"images": [batch, *IMAGE_SHAPE]}, outputs={"result": [batch, 8]}, constants=constants
    )


def boxes_without_batch() -> OnnxGraph:
    """Returns a graph with the places and values of the positive points of one image, as many as there are."""
    nodes = [
        helper.make_node("Conv", ["images", "filters"], ["map"], strides=[4, 4]),  # (1, 1, 4, 4)
        helper.make_node("Relu", ["map"], ["positive"]),
        helper.make_node("NonZero", ["positive"], ["places"]),  # (4, n)
        helper.make_node("Transpose", ["places"], ["indices"]),  # (n, 4)
        helper.make_node("GatherND", ["positive", "indices"], ["scores"]),  # (n,)
        helper.make_node("Cast", ["indices"], ["boxes"], to=TensorProto.FLOAT),
    ]
    return graph_of(
        nodes,
        inputs={"images": [1, *IMAGE_SHAPE]},
        outputs={"boxes": ["found", 4], "scores": ["found"]},
        constants={"filters": filters(1, 3, 4, 4)},
    )


def run(graph: OnnxGraph, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Runs a graph with ONNX Runtime, without this package. Returns its outputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(graph.proto.SerializeToString(), options)
    feeds = {each.name: tensor.numpy() for each, tensor in zip(graph.inputs, tensors, strict=True)}
    return tuple(map(torch.from_numpy, session.run(None, feeds)))


def run_each(graph: OnnxGraph, batch: Tensor) -> tuple[Tensor, ...]:
    """Runs a graph on each image of a batch alone, and joins the results. Asserts that the results differ."""
    runs = [run(graph, image[None]) for image in batch]
    for place in range(len(graph.outputs)):
        assert not torch.allclose(runs[0][place], runs[1][place], rtol=1e-3)
    return tuple(torch.cat(rows) for rows in zip(*runs, strict=True))


def assert_near(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Asserts that results have equal shapes, and differ by at most ``ROUNDING`` of the largest value."""
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= ROUNDING * other.abs().max()
