from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from split_infer_ros.autotuning.best_known import find_best_known
from split_infer_ros.autotuning.spaces import PIPELINE, SEGMENTS, network_space, pipeline_space
from split_infer_ros.autotuning.tasks import network_task
from split_infer_ros.autotuning.trial_process import TrialOutcome, TrialProcess
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.memory_cost.samples import Probe
from split_infer_ros.memory_cost.samples import to_records as memory_records
from split_infer_ros.operator_placement.operator_times import OperatorTimes
from split_infer_ros.operator_placement.operator_times import to_records as operator_records
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.profile_samples import PointSamples, ProfilePart
from split_infer_ros.split.profile_samples import to_records as profile_records

Run = Callable[..., int]


@pytest.fixture
def database(tmp_path: Path) -> Database:
    found = Database(tmp_path / "tuning.jsonl")
    found.add([record(2.0), record(1.0, convolutions="contiguous"), record(error="it crashed", folding=False)])
    return found


def record(*costs: float, error: str | None = None, time: float = 1.0, torch: str = "", **config: object) -> Record:
    key, model = Key.here("cpu"), load_model(ModelSpec("shapes", "none", "cpu"))
    task = network_task(model, 1)
    versions = key.versions_for(task) | ({"torch": torch} if torch else {})
    whole = {**network_space(int(key.target["cores"])).default, **config}
    return Record(key.target, versions, task, whole, costs, error, time)


class Simulated(TrialProcess):
    """Trials that cost nothing; of the pipeline's somebody has enough."""

    def run(self, stage: str, config: Mapping[str, Any], about: Mapping[str, Any], limit_s: float) -> TrialOutcome:
        if stage == PIPELINE:
            raise KeyboardInterrupt
        if stage == SEGMENTS or config["compiler"] != "none":
            return TrialOutcome((), "RuntimeError: no compiler")
        return TrialOutcome((1.0,) if config["convolutions"] == "contiguous" else (2.0,))


def test_a_model_is_tuned_and_the_next_start_says_so(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("split_infer_ros.cli.tune.TrialProcess", Simulated)
    path = tmp_path / "tuning.jsonl"
    assert run("tune", "shapes", "--device", "cpu", "--search", "exhaustive", "--database", str(path)) == 0
    printed = capsys.readouterr()
    assert "shapes on cpu, fp32: tuned: network compiler none, convolutions contiguous" in printed.out
    assert "best 1000.0 ms, 2.00 times the defaults' speed" in printed.err
    assert "RuntimeError: no compiler" in printed.err
    assert "Stopped; what was measured is kept." in printed.err
    assert find_best_known(load_model(ModelSpec("shapes", "none", "cpu")), Database(path)).network is not None


def test_records_are_listed_and_shown(run: Run, database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    path = ("--database", str(database.path))
    parts = {**network_space(1).default, "part": "work", "segment": "neck"}
    database.add([replace(record(1e-6), task={"model": "shapes", "stage": SEGMENTS}, config=parts)])
    assert run("tune", "list", *path) == 0
    assert "shapes network [[1, 3" in (listed := capsys.readouterr().out)
    assert "3 records" in listed
    assert "best 1000.000 ms: compiler none, convolutions contiguous" in listed
    assert listed.count(", best ") == 1, "pieces of a network are no ways to run it"
    assert run("tune", "show", "shapes", *path) == 0
    shown = capsys.readouterr().out
    assert shown.index("1000.000 ms") < shown.index("2000.000 ms") < shown.index("failed: it crashed")
    assert run("tune", "show", "shades", *path) == 1
    assert "no record of 'shades'; there are of: shapes" in capsys.readouterr().err


def test_what_is_exported_can_be_imported_once(
    run: Run, database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, other = tmp_path / "board.jsonl", Database(tmp_path / "other.jsonl")
    assert run("tune", "export", str(file), "--model", "shapes", "--database", str(database.path)) == 0
    assert run("tune", "export", str(file), "--database", str(database.path)) == 1, "it would be written over"
    for expected in (3, 0):
        capsys.readouterr()
        assert run("tune", "import", str(file), "--database", str(other.path)) == 0
        assert f"{expected} records were taken in, {expected} of them of this" in capsys.readouterr().out
    assert other.records() == database.records()


def test_all_that_the_package_measures_can_be_imported(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured, other = Database(tmp_path / "measured.jsonl"), Database(tmp_path / "other.jsonl")
    key, times = Key.here("cpu"), (1e-3, 2e-3)
    measured.add(memory_records({Probe.TOUCH_AGAIN: {4096: times}}, key))
    measured.add(
        profile_records(
            [PointSamples("neck", 2, {ProfilePart.HEAD: times, ProfilePart.PERIOD: times})],
            key,
            {"stage": "split_points"},
        )
    )
    measured.add(
        operator_records({"conv": OperatorTimes(cpu=times, gpu=times, moved=times)}, key, {"stage": "operators"})
    )
    place = dict(pipeline_space(load_model(ModelSpec("shapes", "none", "cpu")), int(key.target["cores"])).default)
    for task, config in (
        ({"operator": "box_nms"}, {"form": "plain"}),
        ({"stage": "execution"}, {"batches": [["a model", 4], ["another", 1]]}),
        ({"stage": PIPELINE}, place),
    ):
        measured.add([Record(key.target, key.versions_for(task), task, config, times)])
    measured.add([record(1.0)])
    assert run("tune", "import", str(measured.path), "--database", str(other.path)) == 0, capsys.readouterr().err
    assert len(other.records()) == len(measured.records()) >= 9


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (record(1.0, convolutions="rm -rf").as_line(), "'convolutions' cannot be 'rm -rf'"),
        (record(1.0, run="code").as_line(), "no knob 'run'"),
        (record(1.0, threads=3).as_line(), "'threads' cannot be 3"),
        (record(1.0, segments=[["packed", "a;b"]]).as_line(), "'segments' cannot be"),
        (Record({"cores": 2}, {}, {"stage": "execution"}, {"batches": [["m", "4"]]}, (1.0,)).as_line(), "'batches' ca"),
        (Record({"cores": 2}, {}, {"stage": "rocket"}, {}, (1.0,)).as_line(), "'rocket', which this version"),
        (Record({"cores": 2}, {}, {"stage": []}, {}, (1.0,)).as_line(), "it is of '[]', which this version"),
        (replace(record(1.0), facts={"difference": []}).as_line(), "its results differ by [], which is no number"),
        (Record({"cores": "2"}, {}, {}, {}, ()).as_line(), "'2' cores"),
        (Record({}, {}, {}, {}, (), others={"format": 9}).as_line(), "format 9, of another version"),
        (record(1.0).as_line().replace("1.0", "0.1"), "edited"),
        ("nonsense", "no JSON"),
    ],
)
def test_import_refuses_records_outside_the_schema(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, sentence: str
) -> None:
    file, database = tmp_path / "board.jsonl", Database(tmp_path / "tuning.jsonl")
    file.write_text(f"{line}\n{record(1.0).as_line()}\n")
    assert run("tune", "import", str(file), "--database", str(database.path)) == 1
    printed = capsys.readouterr()
    assert "line 1 is refused: " in printed.err
    assert sentence in printed.err
    assert "1 records were taken in" in printed.out
    assert database.records() == [record(1.0)]


def test_pruning_needs_a_condition(run: Run, database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    path = ("--database", str(database.path))
    database.add([record(3.0, torch="1.0"), record(4.0, time=4e9)])
    assert run("tune", "prune", *path) == 1
    assert "at least one of" in capsys.readouterr().err
    assert run("tune", "prune", "--failed", *path) == 0
    assert run("tune", "prune", "--other-versions", *path) == 0
    assert run("tune", "prune", "--model", "shades", *path) == 0
    assert [found.costs for found in database.records()] == [(2.0,), (1.0,), (4.0,)]
    assert run("tune", "prune", "--older-than", "30", *path) == 0
    assert [found.costs for found in database.records()] == [(4.0,)]


def test_errors_are_printed_as_sentences(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tune", "shades") == 1
    assert "Did you mean 'shapes'?" in capsys.readouterr().err
    assert run("tune", "import", str(tmp_path / "nothing")) == 1
    assert "cannot be read" in capsys.readouterr().err
    for wrong in (("--seconds", "-1"), ("--batch", "0"), ("--allow", "fp8")):
        with pytest.raises(SystemExit):
            run("tune", "shapes", *wrong)
