"""Names of classes in metadata and in files: what is read, and that nothing hostile is run or kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.onnx_labels import MAX_CHARACTERS, labels_of_metadata, read_labels


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("{0: 'person', 1: \"driver's seat\"}", ("person", "driver's seat")),
        ("{1: 'b', 0: 'a'}", ("a", "b")),
        ("{0: 'a', 3: 'd'}", ("a", "1", "2", "d")),
        ("['a', 'b']", ("a", "b")),
        ('{"0": "a", "1": "b"}', ("a", "b")),
        (" {0: 'Größe', 1: ''} ", ("Größe", "1")),
        ("[0, 1]", ("0", "1")),
        ("{0: 1.5, 1: 7, 2: False}", ("1.5", "7", "False")),
        ("{0: None, 1: 'b'}", ("0", "b")),
        ('["a", null, true]', ("a", "1", "True")),
        ('{"0": "a", "1": null}', ("a", "1")),
        ('{"0": "\\ud83d\\ude97"}', ("🚗",)),
        ("{0.0: 'a'}", ("a",)),
        ('{"person": 0, "car": 1}', ("person", "car")),
        ("{'names': ['a', 'b'], 'nc': 2}", ("a", "b")),
        ('{"id2label": {"0": "a", "1": "b"}, "model_type": "detr"}', ("a", "b")),
        ("{'names': 0, 'labels': 1}", ("names", "labels")),
    ],
)
def test_names_in_metadata_are_read(text: str, labels: tuple[str, ...]) -> None:
    assert labels_of_metadata("m.onnx", text) == labels


@pytest.mark.parametrize("text", ["", " ", "{}", "[]", "()"])
def test_no_names_are_no_labels(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert labels_of_metadata("m.onnx", text) == ()
    assert not caplog.records


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("__import__('os').system('touch ran')", "malformed"),
        ("{0: open('ran', 'w')}", "malformed"),
        ("{0: 'a'", "was never closed"),
        ("{-1: 'a'}", "'-1' is no class number"),
        ("{10**9: 'a'}", "malformed"),
        ("{1000000000: 'a'}", "no class number from 0 to 99999"),
        ("{True: 'a'}", "'True' is no class number"),
        ("{'x': 'a'}", "'x' is no class number"),
        ("{'x': 0, 'y': 0}", "two names have the same number"),
        ("{0: ['a']}", "the name of class 0 is a list, not text"),
        ("{'a', 'b'}", "it is a set"),
        ("5", "it is a int"),
        ("[" * 100_000, ""),
        ("-" * 100_000 + "1", ""),
        ("{0: 'a'\0}", ""),
        ("{[]: 'a'}", ""),
        ("[" + "9" * 5000 + "]", ""),
    ],
)
def test_unreadable_names_are_said_once(
    text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    model = f"{tmp_path.name}.onnx"  # the process knows no sentence about it yet
    for _ in range(2):
        assert labels_of_metadata(model, text) == ()
    (record,) = caplog.records
    sentence = record.getMessage()
    assert sentence.startswith(f"The metadata 'names' of {model} cannot be read (")
    assert reason in sentence
    assert "set the parameter labels to a file of names" in sentence
    assert len(sentence) < 500
    assert not (tmp_path / "ran").exists()


def test_huge_names_are_not_parsed() -> None:
    with pytest.raises(ConfigurationError, match=r"has 2,097,153 characters; at most 2,097,152 are read"):
        labels_of_metadata("m.onnx", " " * (MAX_CHARACTERS + 1))


@pytest.mark.parametrize(
    ("name", "text", "labels"),
    [
        ("labels.txt", "person\n traffic light \r\nbus\n\n", ("person", "traffic light", "bus")),
        ("labels.names", "a\n\nc", ("a", "1", "c")),
        ("labels.json", '["a", "b"]', ("a", "b")),
        ("labels.json", '{"1": "b", "0": "a"}', ("a", "b")),
        ("LABELS.JSON", '["a", 1, null]', ("a", "1", "2")),
        ("config.json", '{"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0}}', ("a", "b")),
        ("config.json", '{"b": 1, "a": 0}', ("a", "b")),
        ("labels.txt", "a\u2028b\nc\x0cd\n\x0b\n", ("a\u2028b", "c\x0cd", "\x0b")),
        ("labels.txt", "a\rb\r", ("a", "b")),
        ("data.yaml", "path: coco\nnames:\n  0: no\n  1: 1.0\n  2: a\n", ("no", "1.0", "a")),
        ("data.yml", "names: [a, 'b c']\nnc: 2\n", ("a", "b c")),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_files_of_labels_are_read(tmp_path: Path, name: str, text: str, labels: tuple[str, ...], encoding: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    assert read_labels(path) == labels


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("labels.txt", None, "There is no file"),
        ("labels.txt", b"", "it is empty"),
        ("labels.txt", b"\xff\xfe\x00", "does not decode as UTF-16; save the file in UTF-8"),
        ("labels.txt", "Fuß".encode("latin-1"), "byte 2 does not decode as UTF-8; save the file in UTF-8"),
        ("labels.txt", "a\nb".encode("utf-16-le"), "zero bytes, .* save the file in UTF-8"),
        ("labels.txt", b"a" * (MAX_CHARACTERS + 1), "more than 2,097,152 characters"),
        ("labels.json", b'["a"', "cannot be read"),
        ("labels.json", b'{"x": "a"}', "no class number"),
        ("labels.json", b"[" * 100_000, "cannot be read"),
        ("labels.json", b"{}", "it is empty"),
        ("data.yaml", b"names: &a [*a, *a]", "aliases are not read"),
        ("data.yaml", b"names: [" + b"a, " * 30_000 + b"]", "at most 65,536 of YAML are read"),
        ("data.yaml", b"[" * 60_000, "nested too deeply"),
        ("data.yaml", b"names: [a", "expected ',' or ']'"),
    ],
)
def test_unusable_files_of_labels_are_refused(tmp_path: Path, name: str, content: bytes | None, reason: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=reason) as refusal:
        read_labels(path)
    assert str(path) in str(refusal.value)


def test_tags_in_yaml_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "data.yaml"
    path.write_text("names: !!python/object/apply:os.system ['touch ran']")
    with pytest.raises(ConfigurationError, match="tags are not read"):
        read_labels(path)
    assert list(tmp_path.iterdir()) == [path]
