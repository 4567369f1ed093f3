"""Nodes that are given hostile model files stay alive and say in a sentence what is wrong with them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rcl_interfaces.msg import Log
from rclpy.context import Context
from ros_pipeline import Pipeline
from ros_support import START_S

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

LIMIT_S = "4"
RED = "tenant_nets:red"
SENTENCES = {
    "cut": "cannot be read as an ONNX file",
    "outside": "takes the weight 'matrix' from '../../etc/passwd', which is not in its folder",
    "endless": f"was not read within {LIMIT_S} s by the process that inspects it",
}


def classifier(damage: str) -> bytes:
    """A classifier of images 8x8 with one kind of harm."""
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Flatten", ["images"], ["flat"]), helper.make_node("MatMul", ["flat", "matrix"], ["all"])]
    constants = {"matrix": np.ones((192, 3), np.float32), "trips": np.array(2**62), "yes": np.array(True)}
    body = helper.make_graph(
        [helper.make_node("Identity", ["yes"], ["goes_on"]), helper.make_node("Neg", ["x"], ["y"])],
        "body",
        [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []), value("x", TensorProto.FLOAT, None)],
        [value("goes_on", TensorProto.BOOL, []), value("y", TensorProto.FLOAT, None)],
    )
    if damage == "endless":
        nodes.append(helper.make_node("Loop", ["trips", "yes", "all"], ["result"], body=body))
    else:
        nodes.append(helper.make_node("Neg", ["all"], ["result"]))
    graph = helper.make_graph(
        nodes,
        "graph",
        [value("images", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [value("result", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if damage == "outside":
        model.graph.initializer[0].ClearField("raw_data")
        model.graph.initializer[0].data_location = TensorProto.EXTERNAL
        model.graph.initializer[0].external_data.add(key="location", value="../../etc/passwd")
    data = bytes(model.SerializeToString())
    return data[:200] if damage == "cut" else data


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A file of each kind."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SPLIT_INFER_ROS_INSPECTION_S", LIMIT_S)
    found = {damage: tmp_path / f"{damage}.onnx" for damage in SENTENCES}
    for damage, path in found.items():
        path.write_bytes(classifier(damage))
    return found


def test_node_that_is_launched_with_such_a_file_says_why(context: Context, files: dict[str, Path]) -> None:
    model = str(files["outside"])
    with Pipeline(context, backbone={"model": model, "weights": "default", "autostart": False}) as pipeline:
        logged = pipeline.client.subscribe(Log, "/rosout")
        assert not pipeline.client.transition("backbone", "configure")
        logged.wait_for_one(lambda log: SENTENCES["outside"] in log.msg, SENTENCES["outside"])
        assert pipeline.client.state("backbone") == "unconfigured"


def test_node_does_not_wait_for_labels_in_a_pipe(context: Context, files: dict[str, Path]) -> None:
    model, pipe = files["outside"].with_name("good.onnx"), files["outside"].with_name("pipe.json")
    model.write_bytes(classifier("none"))
    os.mkfifo(pipe)
    backbone = {"model": str(model), "weights": "default", "autostart": False, "labels": str(pipe)}
    with Pipeline(context, backbone=backbone) as pipeline:
        logged = pipeline.client.subscribe(Log, "/rosout")
        assert not pipeline.client.transition("backbone", "configure")
        logged.wait_for_one(lambda log: str(pipe) in log.msg and "a pipe or a device" in log.msg, "the pipe")
        assert pipeline.client.state("backbone") == "unconfigured"


def test_node_that_is_told_of_such_a_file_goes_on(context: Context, files: dict[str, Path], tmp_path: Path) -> None:
    tenants = {"tenants": ["front"], "tenant.front.model": RED, "allow_user_code": True}
    tenants["tuning_database"] = str(tmp_path / "tuning.jsonl")
    with Pipeline(context, stats={"period_s": 0.2, "camera_timeout_s": 0.0}, tenants=tenants) as pipeline:
        client = pipeline.client
        arrays = client.subscribe(DiagnosticArray, "/diagnostics")

        def said(words: str, level: bytes) -> bool:
            return any(
                words in status.message and status.level == level for array in list(arrays) for status in array.status
            )

        for damage in ("cut", "endless"):
            path = files[damage]
            arrays.clear()
            assert client.set("tenants", **{"tenant.front.model": str(path)}) == [""]
            words = f"It runs as before: {path} {SENTENCES[damage]}"
            arrays.wait_for_one(lambda array, words=words: said(words, DiagnosticStatus.WARN), words, START_S)
            running = pipeline.nodes["tenants"].pipeline.view.tenants
            assert running["front"].model == RED
