"""FILE.yaml beside FILE.onnx is data: what it says is read, what means harm is refused, and foreign files are left."""

from __future__ import annotations

from pathlib import Path

import pytest

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.plain_yaml import MAX_YAML_CHARACTERS
from split_infer_ros.models.side_file import SideFile, read_side_file

FULL = """
decoder:
  boxes: out[0:4]
  scores: [a, b]
  strides: [8, 16]
labels: [person, 7, null]
preprocessing: stretch,bgr
input_size: 64x96
"""


def written(folder: Path, text: str | bytes, suffix: str = ".yaml") -> Path:
    """Writes the file beside a model, and returns the model's path."""
    path = folder / f"net{suffix}"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return folder / "net.onnx"


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_everything_that_it_says_is_read(tmp_path: Path, suffix: str) -> None:
    found = read_side_file(written(tmp_path, FULL, suffix))
    assert found.path == tmp_path / f"net{suffix}"
    assert found.decoder == {"boxes": "out[0:4]", "scores": ["a", "b"], "strides": ["8", "16"]}
    assert found.labels == ("person", "7", "null")
    assert (found.preprocessing, found.input_size) == ("stretch,bgr", "64x96")


def test_a_name_is_enough(tmp_path: Path) -> None:
    assert read_side_file(written(tmp_path, "decoder: yolov8\nlabels: names.txt")) == SideFile(
        tmp_path / "net.yaml", "yolov8", "names.txt"
    )


def test_without_a_file_nothing_is_said(tmp_path: Path) -> None:
    assert read_side_file(tmp_path / "net.onnx") == SideFile()
    (tmp_path / "net.yaml").mkdir()
    assert read_side_file(tmp_path / "net.onnx") == SideFile()


@pytest.mark.parametrize(
    "text",
    ["", "nc: 80\nnames: [a, b]", "- decoder\n- yolov8", "decoder", "42", "backbone:\n  - [-1, 1, Conv, [64, 3, 2]]"],
)
def test_a_file_of_another_program_is_left_alone(tmp_path: Path, text: str) -> None:
    assert read_side_file(written(tmp_path, text)) == SideFile()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("base: &b {a: 1}\nnet:\n  <<: *b\n  decoder: transformer", "aliases are not read"),
        ("net: !Detector\n  decoder: x", "tags are not read"),
        ("a: 1\n---\nb: 2", "another document"),
        ("names:\n" + "- a\n" * (MAX_YAML_CHARACTERS // 4), "65,536"),
        (b"\x00\x01\x02", "zero bytes"),
        (b"\xff\xfe" + "a: *b".encode("utf-16-le"), "aliases are not read"),
    ],
)
def test_what_cannot_be_read_and_is_not_ours_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | bytes, reason: str
) -> None:
    model = written(tmp_path, text)
    for _ in range(2):
        assert read_side_file(model) == SideFile()
    (said,) = [record.message for record in caplog.records]
    assert said.startswith(f"{tmp_path / 'net.yaml'} is left alone: it cannot be read (")
    assert reason in said


@pytest.mark.parametrize(
    "text",
    [
        '"decoder": !a b',
        '{ "decoder": *a}',
        "labels: *a\r\ndecoder : none",
        "#" * MAX_YAML_CHARACTERS + "\ndecoder: none",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
def test_ours_is_refused_if_it_cannot_be_read(tmp_path: Path, text: str, encoding: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_side_file(written(tmp_path, text.encode(encoding)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("decoder: &a yolov8\nlabels: *a", "it has an alias (*name), and aliases are not read"),
        ("a: &a [x, x]\nb: &b [*a, *a]\ndecoder: *b", "alias"),
        ("decoder: [" + "[" * 30_000, "cannot be read"),
        ("decoder: " + "{a: " * 8_000, "cannot be read"),
        ("decoder: !!python/object/apply:os.system ['touch ran']", "and tags are not read"),
        ("decoder: !!python/name:os.system", "and tags are not read"),
        ("decoder: yolov8\n---\ndecoder: yolov5", "but found another document, line 2"),
        (b"decoder: \xff\xfe\x00yolo", "cannot be read"),
        ("decoder: yolov8\n#" + "x" * MAX_YAML_CHARACTERS, "65,536"),
        ("decoder: yolov8\nlabels: {boxes: [}", "expected the node content"),
        ("? [a, b]\n: c\ndecoder: yolov8", "found unhashable key, line 1"),
        ("? {a: b}\n: c\ndecoder: yolov8", "cannot be read"),
    ],
)
def test_what_means_harm_is_refused(tmp_path: Path, text: str | bytes, reason: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        read_side_file(written(tmp_path, text))
    assert reason in str(refusal.value)
    assert str(tmp_path / "net.yaml") in str(refusal.value)
    assert not (tmp_path / "ran").exists()
    assert not Path("ran").exists()


def test_a_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    text = "decoder: yolov8\n#"
    assert read_side_file(written(tmp_path, text + "x" * (MAX_YAML_CHARACTERS - len(text)))).decoder == "yolov8"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("decoder: yolov8\nlabel: x", r"has the key 'label'; keys are: decoder, labels, preprocessing, input_size"),
        ("decoder: 7", "decoder '7' is unknown; it takes one of"),
        ("decoder: [yolov8]", "it takes the name of a decoder"),
        ("decoder:", "it takes the name of a decoder"),
        ("decoder: yolov8\nlabels: {a: b}", "has labels .* it takes text"),
        ("decoder: yolov8\npreprocessing: [stretch]", "has preprocessing .* it takes text"),
        ("decoder: yolov8\ninput_size: 640", "input_size '640' is no size"),
    ],
)
def test_unknown_keys_and_values_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        read_side_file(written(tmp_path, text))


@pytest.mark.parametrize("text", ["decoder: yolov8\ndecoder: yolov5", "decoder: {scores: a, boxes: b, scores: c}"])
def test_a_key_that_comes_twice_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"it has the key '(decoder|scores)' twice"):
        read_side_file(written(tmp_path, text))
