from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx

from split_infer_ros.cli import place
from split_infer_ros.operator_placement.operator_times import CALLS, Times


def test_the_plan_is_printed(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("place", "shapes") == 0
    title, _, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("shapes: ")
    assert [line.split()[0] for line in lines] == ["gpu", "copy", "copy", "cpu"]
    assert lines[1] == "copy  head_classes to the cpu, 57,600 bytes"


def test_programs_read_every_operator(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("place", "shapes", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["model"], told["copied_bytes"], told["unlisted"]) == ("shapes", 134_400, {})
    assert [copy["producer"] for copy in told["copies"]] == ["head_classes", "head_boxes"]
    last = told["operators"][-1]
    assert (last["name"], last["kind"], last["inputs"], last["device"]) == ("output", "output", ["decode"], "cpu")


def test_a_list_of_ones_own_changes_the_plan(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("cpu Conv2d input\n")
    assert run("place", "shapes", "--operators", str(path), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["device"] for one in told["operators"] if one["kind"] == "Conv2d"} == {"cpu"}
    assert len(told["copies"]) > 10


def test_measured_times_replace_the_list_and_are_kept(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def time_all(graph: fx.GraphModule, images: Tensor, devices: object) -> dict[str, Times]:
        measured.append(len(images))
        slow, fast = (0.3,), (0.1,)
        return {node.name: Times(fast, slow, fast) for node in graph.graph.nodes if node.op in CALLS}

    monkeypatch.setattr(place, "choose_device", lambda name: torch.device("cpu"))  # in the place of a GPU
    monkeypatch.setattr(place, "time_operators", time_all)
    told = []
    for _ in range(2):
        assert run("place", "shapes", "--measured", "--database", str(tmp_path / "tuning.jsonl")) == 0
        told.append(capsys.readouterr().out)
    assert measured == [1]
    assert told[0] == told[1]
    assert [line.split()[0] for line in told[0].splitlines()[2:]] == ["gpu", "copy", "cpu"]
    assert run("place", "shapes", "--measured", "--database", str(tmp_path)) == 0  # a folder: nothing can be kept


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("resnet19",), "Did you mean 'resnet18'?"),
        (("shapes", "--operators", "no/such.txt"), "The list of operators no/such.txt cannot be read"),
        pytest.param(
            ("shapes", "--measured"),
            "device 'cuda' is not on this machine",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_what_it_cannot_do_is_a_sentence(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    assert run("place", *arguments) == 1
    assert told in capsys.readouterr().err
