"""Reading ONNX files: weights beside the file, and sentences for what cannot be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx import constants
from split_infer_ros.onnx import file as file_module
from split_infer_ros.onnx.file import read_onnx, weights_beside

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


@pytest.mark.parametrize("leads_to_links", [False, True])
def test_links_lead_to_weights_beside_any_of_them(tmp_path: Path, leads_to_links: bool) -> None:
    """As in the cache of Hugging Face: snapshots/NAME/FILE links to blobs/DIGEST, for the model and its weights."""
    snapshot, blobs = tmp_path / "snapshots" / "name", tmp_path / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    path = saved(snapshot, beside=True)
    expected = read_onnx(path).proto.SerializeToString()
    for file, blob in ((path, "aaa"), (snapshot / WEIGHTS, "bbb")):
        file.rename(blobs / blob)
        file.symlink_to(f"../../blobs/{blob}")
    if leads_to_links:
        own = tmp_path / "own.onnx"
        own.symlink_to(path.relative_to(tmp_path))
        path = own
    assert read_onnx(path).proto.SerializeToString() == expected
    assert list(weights_beside(path)) == [snapshot / WEIGHTS]


def test_weights_beside_the_file_that_a_link_leads_to_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = saved(folder, beside=True)
    link = tmp_path / "link.onnx"
    link.symlink_to(path)
    assert read_onnx(link).proto.SerializeToString() == read_onnx(path).proto.SerializeToString()
    hard = tmp_path / "hard"
    hard.mkdir()
    for file in (path, folder / WEIGHTS):
        (hard / file.name).hardlink_to(file)
    assert read_onnx(hard / path.name).proto.SerializeToString() == read_onnx(path).proto.SerializeToString()


@pytest.mark.parametrize("place", ["link.bin", "../outside/weights.bin"])
def test_links_of_weights_lead_nowhere_else(tmp_path: Path, place: str) -> None:
    blobs, snapshot, outside = (tmp_path / name for name in ("blobs", "snapshot", "outside"))
    for folder in (blobs, snapshot, outside):
        folder.mkdir()
    path = edited(saved(blobs, beside=True), "location", place)
    (snapshot / "m.onnx").symlink_to(path)
    (blobs / WEIGHTS).rename(outside / WEIGHTS)
    (snapshot / "link.bin").symlink_to(outside / WEIGHTS)
    with pytest.raises(ConfigurationError, match=f"takes the weight 'w1' from '{place}', which is not in its folder"):
        read_onnx(snapshot / "m.onnx")


def test_checking_leaves_the_weights_as_they_are(tmp_path: Path) -> None:
    proto = read_onnx(saved(tmp_path)).proto
    before = proto.SerializeToString()
    with constants.structure_of(proto) as structure:
        large = [each for each in structure.graph.initializer if each.dims == [0]]
        assert large
        assert len(structure.SerializeToString()) < len(before)
    assert proto.SerializeToString() == before


@pytest.mark.parametrize("place", ["../weights.bin", "/etc/passwd", "", "link.bin", "sub/../weights.bin"])
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
    monkeypatch.setattr(constants, "MAX_WEIGHT_BYTES", 1000)
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


@pytest.mark.parametrize("operator", ["EPContext", "PyOp", "PythonOp"])
def test_operators_that_load_files_or_run_code_are_refused(tmp_path: Path, operator: str) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(small_graph().proto)
    proto.graph.node[1].domain, proto.graph.node[1].op_type = "com.microsoft", operator
    path = tmp_path / "loader.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ConfigurationError, match=rf"uses the operators com\.microsoft\.{operator}, which"):
        read_onnx(path)


@pytest.mark.parametrize(
    ("dims", "raw", "sentence"),
    [
        ([2**40], b"", r"'w1' has 0 bytes, and its shape \(1099511627776\) needs 4,398,046,511,104"),
        ([2], b"1234567", r"'w1' has 7 bytes, and its shape \(2\) needs 8"),
        ([2], None, r"'w1' has 0 values, and its shape \(2\) needs 2"),
        ([-1], b"", r"'w1' has the shape \(-1\), which no tensor has"),
        ([2] * 100, b"", r"'w1' has the shape \(2, 2, 2, 2, 2, 2, 2, 2, \.\.\.\), which no tensor has"),
    ],
)
def test_constants_have_as_much_data_as_they_say(
    tmp_path: Path, dims: list[int], raw: bytes | None, sentence: str
) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(small_graph().proto)
    weight = next(each for each in proto.graph.initializer if each.name == "w1")
    weight.ClearField("dims")
    weight.dims.extend(dims)
    weight.ClearField("raw_data")
    if raw is not None:
        weight.raw_data = raw
    path = tmp_path / "small.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ConfigurationError, match=f"is damaged: the constant {sentence}"):
        read_onnx(path)


def test_bytes_named_by_many_constants_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, beside=True)
    monkeypatch.setattr(constants, "host_bytes_free", lambda: 100)
    with pytest.raises(ConfigurationError, match=r"cannot be read: [\d,]+ bytes were asked for, and the host has 100"):
        read_onnx(path)


def test_files_beside_a_model_are_found_without_reading_them(tmp_path: Path) -> None:
    path = saved(tmp_path, beside=True)
    weights = small_graph().proto.graph.initializer
    assert weights_beside(path) == {tmp_path / WEIGHTS: sum(len(each.raw_data) for each in weights)}
    assert weights_beside(saved(tmp_path)) == {}


@pytest.mark.parametrize("place", ["constant", "sparse", "function"])
def test_weights_of_every_place_stay_in_the_folder(tmp_path: Path, place: str) -> None:
    helper = onnx.helper
    outside = onnx.TensorProto(name="out", data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="../out.bin")
    value = outside
    if place == "sparse":
        value = onnx.SparseTensorProto(values=outside, indices=onnx.numpy_helper.from_array(np.array([0])), dims=[4])
    node = helper.make_node("Constant", [], ["c"], **{"sparse_value" if place == "sparse" else "value": value})
    nodes = [helper.make_node("Relu", ["images"], ["result"])]
    proto = graph_of(nodes, inputs={"images": ["n", 3, 4, 4]}, outputs={"result": ["n", 3, 4, 4]}).proto
    if place == "function":
        call = helper.make_node("Identity", ["x"], ["y"])
        opsets = [helper.make_opsetid("", 17)]
        proto.functions.append(helper.make_function("own", "Same", ["x"], ["y"], [node, call], opsets))
        proto.opset_import.append(helper.make_opsetid("own", 1))
        proto.graph.node[0].CopyFrom(helper.make_node("Same", ["images"], ["result"], domain="own"))
    else:
        proto.graph.node.insert(0, node)
    path = tmp_path / "places.onnx"
    path.write_bytes(proto.SerializeToString())
    for read in (read_onnx, weights_beside):
        with pytest.raises(
            ConfigurationError, match=r"takes the weight '.*' from '\.\./out\.bin', which is not in its"
        ):
            read(path)


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
