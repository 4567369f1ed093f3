from __future__ import annotations

from pathlib import Path

import pytest

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.operator_placement.operator_list import DEFAULT_LIST, OperatorList
from split_infer_ros.operator_placement.plan import Operator, Tag


def tag_of(operator_list: OperatorList, kind: str) -> Tag | None:
    return operator_list(Operator("operator", kind))


def test_the_default_list_knows_all_spellings() -> None:
    operator_list = OperatorList.read()
    for kind in ("Conv2d", "conv2d", "aten.conv2d", "add_", "AdaptiveAvgPool2d", "adaptive_avg_pool2d", "index_fill_"):
        assert tag_of(operator_list, kind) is Tag.GPU, kind
    assert tag_of(operator_list, "suppress") is tag_of(operator_list, "argsort") is Tag.CPU
    assert tag_of(operator_list, "flatten") is Tag.ANY
    assert tag_of(operator_list, "wavelet") is None


def test_no_operator_is_listed_twice() -> None:
    names = [name for line in DEFAULT_LIST.read_text().splitlines() for name in line.partition("#")[0].split()[1:]]
    assert len(names) == len(set(names))


def test_a_file_adds_and_replaces_entries(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("# mine\n\ngpu wavelet  my_op # both\ncpu Conv2d\n")
    operator_list = OperatorList.read(path)
    assert tag_of(operator_list, "Wavelet") is tag_of(operator_list, "myop") is tag_of(operator_list, "relu") is Tag.GPU
    assert tag_of(operator_list, "conv2d") is Tag.CPU


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu relu\ntpu conv2d\n", r"line 2: 'tpu conv2d'.*it takes one of gpu, cpu, any, followed by operators"),
        ("gpu\n", "line 1: 'gpu'"),
        ("conv2d gpu", "line 1: 'conv2d gpu'"),
    ],
)
def test_a_malformed_line_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message) as refusal:
        OperatorList.read(path)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00gpu"])
def test_an_unreadable_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "mine.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        OperatorList.read(path)
