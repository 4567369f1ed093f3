"""What lies beside a model is data: it is read, or refused with its name, and nothing in it runs or is waited for."""

from __future__ import annotations

import os
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
        ("#" * 2**19, "more than"),
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


def test_a_pipe_beside_a_model_is_no_description(model: Path) -> None:
    os.mkfifo(model.with_suffix(".yaml"))
    assert side_path(model) is None
    assert read_side_file(model) == SideFile()
