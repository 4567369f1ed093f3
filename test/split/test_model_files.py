"""A model whose files were exported anew is loaded anew, and whoever uses the old one keeps it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from split_infer_ros.models.catalogue import find_model
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_files import files_state, named_files
from split_infer_ros.split.model_spec import ModelSpec

onnx = pytest.importorskip("onnx")

from onnx_files import network, ultralytics  # noqa: E402
from partitions import partitions_of  # noqa: E402


def weights(path: Path, factor: float) -> Path:
    """Weights of the small detector, all multiplied."""
    module = find_model("shapes").build()
    assert isinstance(module, torch.nn.Module)
    state = module.state_dict()
    save_file({name: (value * factor).to(value.dtype).contiguous() for name, value in state.items()}, path)
    return path


def test_new_weights_are_loaded_and_old_ones_stay(tmp_path: Path) -> None:
    spec = ModelSpec("shapes", str(weights(tmp_path / "w.safetensors", 1.0)), "cpu")
    old = load_model(spec)
    assert load_model(spec) is old
    images = torch.rand(1, *old.entry.image_shape)
    with torch.inference_mode():
        before = partitions_of(old, "default").backbone(images)
        weights(tmp_path / "w.safetensors", 0.5)
        new = load_model(spec)
        assert new is not old
        after = partitions_of(new, "default").backbone(images)
        again = partitions_of(old, "default").backbone(images)
    assert all(torch.equal(first, second) for first, second in zip(before, again, strict=True)), "bit for bit"
    assert not all(torch.allclose(first, second) for first, second in zip(before, after, strict=True))
    assert load_model(spec) is new


def test_each_file_of_an_onnx_model_counts(tmp_path: Path) -> None:
    path, data, labels = tmp_path / "m.onnx", tmp_path / "m.data", tmp_path / "names.txt"
    proto = network(6, 84, metadata=ultralytics(imgsz="[32, 32]", names="['a', 'b']"))
    onnx.save_model(proto, str(path), save_as_external_data=True, location=data.name, size_threshold=100)
    labels.write_text("first\nsecond\n")
    spec = ModelSpec(str(path), device="cpu", decoder="yolov8", labels=str(labels))
    models = [load_model(spec)]
    assert load_model(spec) is models[0]
    changes: tuple[Callable[[], object], ...] = (
        lambda: labels.write_text("third\nfourth\n"),
        lambda: data.write_bytes(bytes(len(data.read_bytes()))),
    )
    for change in changes:
        change()
        models.append(load_model(spec))
        assert load_model(spec) is models[-1]
    assert len(set(map(id, models))) == 3
    assert models[0].entry.labels == ("first", "second")
    assert models[-1].entry.labels == ("third", "fourth")


def test_files_are_those_that_are_named_or_describe_the_model(tmp_path: Path) -> None:
    assert named_files(ModelSpec("shapes")) == []
    assert named_files(ModelSpec("shapes", "w.pth")) == [Path("w.pth")]
    spec = ModelSpec("m.onnx", labels="names.txt")
    assert named_files(spec) == [Path("m.onnx"), Path("m.yaml"), Path("m.yml"), Path("names.txt")]
    model = tmp_path / "m.onnx"
    beside = [tmp_path / name for name in ("m.yaml", "m.yml", "names.txt", "anchors.npy")]
    beside[0].write_text("decoder: {scores: a, anchors: anchors.npy}\nlabels: names.txt\n")
    assert named_files(ModelSpec(str(model))) == [model, *beside]
    declared = ModelSpec(str(model), decoder="scores=a,anchors=/b.npy")
    assert named_files(declared) == [model, *beside[:3], Path("/b.npy")]
    beside[0].write_text("decoder: [")
    assert named_files(ModelSpec(str(model))) == [model, *beside[:2]], "loading it says what is wrong"
    assert named_files(ModelSpec("m.pt2", allow_user_code=True)) == [Path("m.pt2")]


def test_state_tells_a_new_file_from_the_old_one(tmp_path: Path) -> None:
    file, other = tmp_path / "a", tmp_path / "b"
    assert files_state([file, Path("\0")]) == ((), ())
    file.write_text("same")
    before = files_state([file])
    assert files_state([file]) == before
    other.write_text("same")
    other.replace(file)
    assert files_state([file]) != before
