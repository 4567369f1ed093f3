from __future__ import annotations

from pathlib import Path

import pytest

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.operator_placement.operator_list import LISTED, OperatorList
from split_infer_ros.operator_placement.plan import Operator, Tag


def tag_of(listed: OperatorList, kind: str) -> Tag | None:
    return listed(Operator("it", kind))


def test_the_packages_list_knows_operators_however_they_are_spelt() -> None:
    listed = OperatorList.read()
    for kind in ("Conv2d", "conv2d", "aten.conv2d", "add_", "AdaptiveAvgPool2d", "adaptive_avg_pool2d", "index_fill_"):
        assert tag_of(listed, kind) is Tag.GPU, kind
    assert tag_of(listed, "suppress") is tag_of(listed, "argsort") is Tag.CPU
    assert tag_of(listed, "flatten") is Tag.ANY
    assert tag_of(listed, "wavelet") is None


def test_no_operator_is_listed_twice() -> None:
    names = [name for line in LISTED.read_text().splitlines() for name in line.partition("#")[0].split()[1:]]
    assert len(names) == len(set(names))


def test_a_file_adds_lines_and_replaces_some(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("# mine\n\ngpu wavelet  my_op # both\ncpu Conv2d\n")
    listed = OperatorList.read(path)
    assert tag_of(listed, "Wavelet") is tag_of(listed, "myop") is tag_of(listed, "relu") is Tag.GPU
    assert tag_of(listed, "conv2d") is Tag.CPU


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gpu relu\ntpu conv2d\n", r"line 2: 'tpu conv2d'.*a line is one of gpu, cpu, any, and behind it operators"),
        ("gpu\n", "line 1: 'gpu'"),
        ("conv2d gpu", "line 1: 'conv2d gpu'"),
    ],
)
def test_a_line_of_another_form_is_told(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=told) as refusal:
        OperatorList.read(path)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00gpu"])
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "mine.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        OperatorList.read(path)
