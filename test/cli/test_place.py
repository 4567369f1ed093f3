from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx

from split_infer_ros.cli import place
from split_infer_ros.operator_placement.operator_timer import CALLS
from split_infer_ros.operator_placement.operator_times import OperatorTimes
from split_infer_ros.operator_placement.placed_run import PlacedRun


def test_the_plan_is_printed(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("place", "shapes") == 0
    title, _, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("shapes: ")
    assert [line.split()[0] for line in lines] == ["gpu", "copy", "copy", "cpu"]
    assert lines[1] == "copy  head_classes to the cpu, 57,600 bytes"


def test_json_has_every_operator(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("place", "shapes", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["model"], answer["copied_bytes"], answer["unlisted"]) == ("shapes", 134_400, {})
    assert [copy["producer"] for copy in answer["copies"]] == ["head_classes", "head_boxes"]
    last = answer["operators"][-1]
    assert (last["name"], last["kind"], last["inputs"], last["device"]) == ("output", "output", ["decode"], "cpu")


def test_a_users_list_changes_the_plan(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("cpu Conv2d input\n")
    assert run("place", "shapes", "--operators", str(path), "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert {each["device"] for each in answer["operators"] if each["kind"] == "Conv2d"} == {"cpu"}
    assert len(answer["copies"]) > 10


def test_measured_times_replace_the_list_and_are_stored(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def time_all(graph: fx.GraphModule, images: Tensor, devices: object) -> dict[str, OperatorTimes]:
        measured.append(len(images))
        times = OperatorTimes(cpu=(0.1,), gpu=(0.3,), moved=(0.1,))
        return {node.name: times for node in graph.graph.nodes if node.op in CALLS}

    monkeypatch.setattr(place, "choose_device", lambda name: torch.device("cpu"))  # instead of a GPU
    monkeypatch.setattr(place, "time_operators", time_all)
    outputs = []
    for _ in range(2):
        assert run("place", "shapes", "--measured", "--database", str(tmp_path / "tuning.jsonl")) == 0
        outputs.append(capsys.readouterr().out)
    assert measured == [1]
    assert outputs[0] == outputs[1]
    assert [line.split()[0] for line in outputs[0].splitlines()[2:]] == ["gpu", "copy", "cpu"]
    assert run("place", "shapes", "--measured", "--database", str(tmp_path)) == 0  # a folder, so nothing can be stored


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_plan_runs_and_says_what_was_not_measured(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("place", "shapes", "--weights", "default", "--run", "--images", "2") == 0
    *_, ran, compared, timed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"Ran on 2 images of shapes, one by one: [1-9]\d* detections\.", ran)
    assert compared == "Classes equal those on one device; scores differ by at most 0."
    assert timed.startswith("Both processors are this CPU, because there is no GPU. So no time was measured")
    assert run("place", "shapes", "--run", "--images", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["run"]["seconds"] is None


def test_times_of_a_run_are_compared_turn_by_turn() -> None:
    ran = PlacedRun(
        images=8,
        detections=40,
        images_that_differ=1,
        score_difference=1e-6,
        seconds=([0.0102] * 12, [0.01] * 12),
    )
    _, compared, timed = place.describe_run(ran, "folder:x").splitlines()
    assert compared == "1 of 8 images have other detections than on one device."
    assert timed == (
        "10.20 ms an image as placed, 10.00 ms all on the GPU. "
        "Falling back changes the time by +2.00 % (+2.00 to +2.00 %, 12 turns)."
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resnet19",), "Did you mean 'resnet18'?"),
        (("shapes", "--run", "folder:no/such"), "no/such"),
        (("shapes", "--operators", "no/such.txt"), "The list of operators no/such.txt cannot be read"),
        pytest.param(
            ("shapes", "--measured"),
            "device 'cuda' is not on this machine",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_errors_are_sentences(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert run("place", *arguments) == 1
    assert message in capsys.readouterr().err
