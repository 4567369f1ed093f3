from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec


def test_every_crossing_tensor_has_a_line(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("split_points", "shapes") == 0
    title, _, heading, *lines = capsys.readouterr().out.splitlines()
    split_points = load_model(ModelSpec("shapes", "none", "cpu")).split_points
    assert title.startswith("shapes: ")
    assert heading.split() == ["split_point", "bytes/image", "tensors"]
    assert len(lines) == sum(len(split_point.tensors) for split_point in split_points)
    assert lines[0].split() == ["input", "3,686,400", "x", "float32", "(3,", "480,", "640)"]
    assert [line.split()[1] for line in lines if line.startswith("*")] == ["neck"]
    assert lines[-1].split() == ["head_boxes", "float32", "(4,", "60,", "80)"]


def test_json_has_the_same_split_points(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("split_points", "shapes", "--json", "--precision", "fp16", "--weights", "default") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["model"], answer["default"]) == ("shapes", "neck")
    assert [split_point["name"] for split_point in answer["split_points"]] == [
        split_point.name for split_point in load_model(ModelSpec("shapes", "none", "cpu")).split_points
    ]
    (neck,) = [split_point for split_point in answer["split_points"] if split_point["name"] == "neck"]
    assert neck["bytes_per_image"] == 96_000
    assert neck["tensors"] == [{"name": "neck_join_4", "shape": [10, 60, 80], "dtype": "float16"}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resnet19",), "Did you mean 'resnet18'?"),
        (("os:getcwd",), "allow_user_code"),
        (("os:getcwd", "--allow-user-code"), "returns a str"),
        (("shapes", "--weights", "no/such.pth"), "There is no weights file"),
    ],
)
def test_errors_are_sentences(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert run("split_points", *arguments) == 1
    assert message in capsys.readouterr().err
