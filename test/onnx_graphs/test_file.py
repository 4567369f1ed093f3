"""Reading ONNX files: weights beside the file, and sentences for what cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx_graphs import file as file_module
from split_infer_ros.onnx_graphs.file import read_onnx

onnx = pytest.importorskip("onnx")

from small_graphs import graph_of, small_graph  # noqa: E402

WEIGHTS = "weights.bin"


def saved(folder: Path, *, beside: bool = False) -> Path:
    """The small graph as a file, whose weights lie in the file or beside it."""
    path = folder / "small.onnx"
    proto = onnx.ModelProto()
    proto.CopyFrom(small_graph().proto)
    onnx.save_model(
        proto, str(path), save_as_external_data=beside, location=WEIGHTS, size_threshold=0, convert_attribute=True
    )
    return path


def edited(path: Path, key: str, value: str) -> Path:
    """Changes where each weight of a file is said to lie."""
    proto = onnx.load_model(str(path), load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == key:
                entry.value = value
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("beside", [False, True])
def test_model_is_read_with_its_weights(tmp_path: Path, beside: bool) -> None:
    path = saved(tmp_path, beside=beside)
    graph = read_onnx(path)
    assert graph.name == "small.onnx"
    assert (tmp_path / WEIGHTS).exists() == beside
    found = {each.name: onnx.numpy_helper.to_array(each) for each in graph.proto.graph.initializer}
    for each in small_graph().proto.graph.initializer:
        assert (found[each.name] == onnx.numpy_helper.to_array(each)).all()


@pytest.mark.parametrize("place", ["../weights.bin", "/etc/passwd", "", "link.bin"])
def test_weights_outside_the_folder_are_refused(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = saved(folder, beside=True)
    (tmp_path / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes())
    (folder / "link.bin").symlink_to(tmp_path / WEIGHTS)
    with pytest.raises(ConfigurationError, match=f"takes the weight 'w1' from '{place}', which is not in its folder"):
        read_onnx(edited(path, "location", place))


def test_missing_and_short_files_of_weights_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, beside=True)
    (tmp_path / WEIGHTS).write_bytes(b"short")
    with pytest.raises(ConfigurationError, match=r"which has 5: the two files are not of one model"):
        read_onnx(path)
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(ConfigurationError, match="there is no such file"):
        read_onnx(path)


def test_unreadable_offsets_are_refused(tmp_path: Path) -> None:
    path = edited(saved(tmp_path, beside=True), "offset", "far away")
    with pytest.raises(ConfigurationError, match="where 'w1' lies is unreadable"):
        read_onnx(path)
    with pytest.raises(ConfigurationError, match="not of one model"):
        read_onnx(edited(saved(tmp_path, beside=True), "offset", "-1"))


def test_more_weights_than_allowed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, beside=True)
    monkeypatch.setattr(file_module, "MAX_WEIGHT_BYTES", 1000)
    with pytest.raises(ConfigurationError, match="more than 1,000 bytes of weights"):
        read_onnx(path)


@pytest.mark.parametrize("content", [b"", b"not an ONNX file", b"\x08\x08\x12\x00" * 9])
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"model\.onnx cannot be read as an ONNX file .*export it again"):
        read_onnx(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    content = saved(tmp_path).read_bytes()
    path = tmp_path / "short.onnx"
    for length in range(0, len(content) - 1, len(content) // 40):
        path.write_bytes(content[:length])
        with pytest.raises(ConfigurationError):
            read_onnx(path)


def test_missing_and_oversized_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"There is no ONNX file .*none\.onnx"):
        read_onnx(tmp_path / "none.onnx")
    path = saved(tmp_path)
    monkeypatch.setattr(file_module, "MAX_FILE_BYTES", 100)
    with pytest.raises(ConfigurationError, match="export the model with its weights in a file of their own"):
        read_onnx(path)


def test_operators_that_no_engine_has_are_named(tmp_path: Path) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(small_graph().proto)
    proto.graph.node[1].domain = "com.example"
    proto.opset_import.append(onnx.helper.make_opsetid("com.example", 1))
    path = tmp_path / "foreign.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ConfigurationError, match=r"uses the operators com\.example\.Relu, which no engine has"):
        read_onnx(path)


def test_invalid_graphs_are_refused(tmp_path: Path) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(small_graph().proto)
    proto.graph.node[1].input[0] = "nowhere"
    path = tmp_path / "invalid.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ConfigurationError, match="is no valid ONNX model"):
        read_onnx(path)


def test_functions_of_the_file_are_inlined(tmp_path: Path) -> None:
    helper = onnx.helper
    twice = helper.make_function(
        "own", "Twice", ["x"], ["y"], [helper.make_node("Add", ["x", "x"], ["y"])], [helper.make_opsetid("", 17)]
    )
    graph = graph_of(
        [helper.make_node("Relu", ["images"], ["positive"]), helper.make_node("Neg", ["positive"], ["result"])],
        inputs={"images": ["batch", 3, 4, 4]},
        outputs={"result": ["batch", 3, 4, 4]},
    )
    proto = graph.proto
    proto.functions.append(twice)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    proto.graph.node[1].CopyFrom(helper.make_node("Twice", ["positive"], ["result"], domain="own"))
    path = tmp_path / "functions.onnx"
    path.write_bytes(proto.SerializeToString())
    assert [node.op_type for node in read_onnx(path).proto.graph.node] == ["Relu", "Add"]
