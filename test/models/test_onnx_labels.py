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
    ],
)
def test_names_in_metadata_are_read(text: str, labels: tuple[str, ...]) -> None:
    assert labels_of_metadata("m.onnx", text) == labels


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("__import__('os').system('touch ran')", "malformed"),
        ("{0: open('ran', 'w')}", "malformed"),
        ("{0: 'a'", "was never closed"),
        ("", "invalid syntax"),
        ("{}", "empty"),
        ("{-1: 'a'}", "'-1' is no class number"),
        ("{10**9: 'a'}", "malformed"),
        ("{1000000000: 'a'}", "no class number from 0 to 99999"),
        ("{True: 'a'}", "'True' is no class number"),
        ("{'x': 'a'}", "'x' is no class number"),
        ("{0: ['a']}", "the name of class 0 is a list, not text"),
        ("5", "it is a int"),
        ("[" * 100_000, ""),
        ("-" * 100_000 + "1", ""),
        ("{0: 'a'\0}", ""),
        ("{[]: 'a'}", ""),
    ],
)
def test_hostile_names_are_refused(text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as refusal:
        labels_of_metadata("m.onnx", text)
    sentence = str(refusal.value)
    assert sentence.startswith("The metadata 'names' of m.onnx cannot be read (")
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
    ],
)
def test_files_of_labels_are_read(tmp_path: Path, name: str, text: str, labels: tuple[str, ...]) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert read_labels(path) == labels


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("labels.txt", None, "There is no file"),
        ("labels.txt", b"", "it is empty"),
        ("labels.txt", b"\xff\xfe\x00", "decode"),
        ("labels.txt", b"a" * (MAX_CHARACTERS + 1), "more than 2,097,152 characters"),
        ("labels.json", b'["a"', "cannot be read"),
        ("labels.json", b'{"x": "a"}', "no class number"),
        ("labels.json", b"[" * 100_000, "cannot be read"),
        ("data.yaml", b"names: [a, b]", "is a YAML file, which is not read"),
    ],
)
def test_unusable_files_of_labels_are_refused(tmp_path: Path, name: str, content: bytes | None, reason: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=reason) as refusal:
        read_labels(path)
    assert str(path) in str(refusal.value)
