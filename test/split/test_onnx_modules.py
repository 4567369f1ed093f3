"""The modules of ONNX nodes, from their metadata or their names."""

from __future__ import annotations

import pytest

from split_infer_ros.split.blocks import ModuleKind, Operation
from split_infer_ros.split.onnx_modules import read_modules, unique_names

onnx = pytest.importorskip("onnx")


def node(operator: str, name: str = "", scopes: str = "", classes: str = "") -> onnx.NodeProto:
    made = onnx.helper.make_node(operator, ["x"], ["y"], name=name)
    for key, value in (("name_scopes", scopes), ("class_hierarchy", classes)):
        if value:
            made.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    return made


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("/model.9/cv1/conv/Conv", "model.9.cv1.conv"),
        ("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1"),
        ("/features/features.1/block/block.0/block.0.0/Conv_1", "features.1.block.0.0"),
        ("/Concat_3", ""),
        ("Conv_0", ""),
        ("", ""),
        ("model/stem/conv/Conv2D", "model.stem.conv"),
    ],
)
def test_name_gives_the_path_of_the_module(name: str, owner: str) -> None:
    operations, _ = read_modules([node("Conv", name)])
    assert operations == [Operation(owner, "conv")]


def test_kinds_are_guessed_from_names() -> None:
    names = ["/body/body.0/conv/Conv", "/body/body.0/Add", "/body/body.1/Relu", "/head/conv/Conv", "/head/Add"]
    _, classes = read_modules([node("X", name) for name in names])
    assert {path: each.kind for path, each in classes.items()} == {
        "body": ModuleKind.CHAIN,
        "body.0": ModuleKind.OTHER,
        "body.0.conv": ModuleKind.LAYER,
        "body.1": ModuleKind.LAYER,
        "head": ModuleKind.OTHER,
        "head.conv": ModuleKind.LAYER,
    }
    assert len({each.name for each in classes.values()}) == len(classes)


def test_metadata_gives_paths_and_classes() -> None:
    operations, classes = read_modules(
        [
            node(
                "Conv",
                "node_conv_3",
                "['', 'body', 'body.0', 'conv2d_3']",
                "['own.Net', 'torch.nn.modules.container.Sequential', 'torch.nn.modules.conv.Conv2d', 'aten.conv2d']",
            ),
            node("Add", "node_add", "['', 'add_12']", "['own.Net', 'aten.add']"),
            node("Identity", "made_by_the_optimiser"),
        ]
    )
    assert operations == [Operation("body.0", "conv2d"), Operation("", "add"), Operation("", "identity")]
    assert {path: each.kind for path, each in classes.items()} == {
        "body": ModuleKind.CHAIN,
        "body.0": ModuleKind.LAYER,
    }


@pytest.mark.parametrize("scopes", ["[", "{}", "['']", "['', 'a', 'b']", "(" * 1000, "[1, 2]"])
def test_damaged_metadata_gives_no_module(scopes: str) -> None:
    operations, classes = read_modules([node("Conv", "x", scopes, "['own.Net', 'aten.conv2d']")])
    assert operations[0].owner in ("", "1")
    assert "b" not in classes


def test_nodes_without_names_are_numbered() -> None:
    nodes = [node("Conv"), node("Conv"), node("Relu", "last"), node("Conv", "last")]
    assert unique_names(nodes) == ["conv_1", "conv_2", "last", "last_2"]
