"""What lies beside a model is data: it is read, or refused with its name, and nothing in it runs or is waited for."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.side_file import SideFile, read_side_file, side_path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "m.onnx"


def described(model: Path, text: str) -> SideFile:
    model.with_suffix(".yaml").write_text(text)
    return read_side_file(model)


def test_every_key_is_read(model: Path) -> None:
    side = described(model, "decoder: yolov8\nlabels: [a, ~, no]\npreprocessing: stretch\ninput_size: 32x32\n")
    assert (side.decoder, side.preprocessing, side.input_size) == ("yolov8", "stretch", "32x32")
    assert side.labels == ("a", "~", "no")


def test_another_programs_file_is_left_alone(model: Path) -> None:
    assert described(model, "nc: 80\nanchors: [1, 2]\n") == SideFile()


def test_half_characters_cannot_leave_a_file(model: Path) -> None:
    labels = described(model, 'decoder: none\nlabels: ["\\ud800", "\\ud83d\\ude97"]\n').labels
    assert labels == ("\ufffd", "🚗")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("decoder: nonsense", "decoder 'nonsense' is unknown"),
        ("decoder:", "takes the name of a decoder"),
        ("decoder: []", "takes the name of a decoder"),
        ("decoder: a=", "has the entry"),
        ("decoder: none\ninput_size: 0x0", "is no size"),
        ("decoder: none\npreprocessing: mirror", "unknown word 'mirror'"),
        ("decoder: none\nlabels: [[a], b]", "the name of class 0 is a list"),
        ("decoder: none\nlabels: {0: a}", "it takes text"),
        ("decoder: none\n<<: {a: b}", "has the key '<<'"),
        ('decoder: "\\UFFFFFFFF"', "cannot be read"),
        ("decoder: &a [*a]", "aliases are not read"),
        ("decoder: none\n---\ndecoder: none", "cannot be read"),
        ("decoder: " + "[" * 10_000, "nested too deeply"),
        ("decoder: none" + "#" * 2**19, "more than"),
    ],
)
def test_what_means_nothing_is_refused_by_name(model: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as refusal:
        described(model, text)
    assert str(model.with_suffix(".yaml")) in str(refusal.value)


def test_tags_run_nothing(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    with pytest.raises(ConfigurationError, match="tags are not read"):
        described(model, "decoder: !!python/object/apply:os.mkdir ['ran']")
    assert not (model.parent / "ran").exists()


ELSEWHERE = ("/etc/hostname", "~/secret.npy", "../../outside.npy", "link.npy", "folder/outside.npy", "loop.npy", "..")


@pytest.fixture
def crowded(model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in a folder with links that lead out of it. The user's home has a file, too."""
    monkeypatch.setenv("HOME", str(model.parent))
    folder = model.parent / "a" / "b"
    folder.mkdir(parents=True)
    for file in (model.parent / "secret.npy", model.parent / "outside.npy", folder / "names.npy"):
        file.touch()
    (folder / "link.npy").symlink_to(model.parent / "outside.npy")
    (folder / "folder").symlink_to(model.parent)
    (folder / "loop.npy").symlink_to("loop.npy")
    return folder / "m.onnx"


@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("labels", "decoder: none\nlabels: '{}'"),
        ("anchors", "decoder: {{scores: a, anchors: '{}'}}"),
        ("anchors", "decoder: {{scores: a, anchors: ' {} '}}"),
        ("anchors", "decoder: 'scores=a, anchors = {}'"),
    ],
)
def test_files_outside_the_models_folder_are_refused(crowded: Path, key: str, text: str, name: str) -> None:
    sentence = (
        rf"m\.yaml has {key} '{re.escape(name)}', which is not in its folder {crowded.parent}; move that file there"
    )
    with pytest.raises(ConfigurationError, match=sentence):
        described(crowded, text.format(name))


@pytest.mark.parametrize(
    "name", ["names.npy", "missing.npy", "../b/names.npy", "~/a/b/names.npy", "~nobody_of_this_name/x.npy"]
)
def test_files_in_the_models_folder_may_be_named(crowded: Path, name: str) -> None:
    side = described(crowded, f"decoder: {{scores: a, anchors: '{name}'}}\nlabels: '{name}'")
    assert side.labels == name


def test_a_linked_model_may_name_what_lies_with_its_file(crowded: Path) -> None:
    """As in the cache of Hugging Face, where all files of a model are links into one folder."""
    blobs = crowded.parent / "blobs"
    blobs.mkdir()
    for name, text in {"m.onnx": "", "m.yaml": "decoder: none\nlabels: names.txt", "names.txt": "a"}.items():
        (blobs / name).write_text(text)
    snapshot = crowded.parent / "snapshot"
    snapshot.mkdir()
    for name in ("m.onnx", "m.yaml", "names.txt"):
        (snapshot / name).symlink_to(blobs / name)
    assert read_side_file(snapshot / "m.onnx").labels == "names.txt"


def test_a_pipe_beside_a_model_is_no_description(model: Path) -> None:
    os.mkfifo(model.with_suffix(".yaml"))
    assert side_path(model) is None
    assert read_side_file(model) == SideFile()
