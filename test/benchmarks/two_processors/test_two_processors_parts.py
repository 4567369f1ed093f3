"""Parts of the benchmark of two processors: processors, times of stages, rivals, and competitors."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from made_timelines import batch

from benchmarks.rivals.pipelines import stage_figures
from benchmarks.two_processors import processors as processors_module
from benchmarks.two_processors import subject as subjects
from benchmarks.two_processors import timeline
from benchmarks.two_processors.__main__ import QUICK_EFFORT
from benchmarks.two_processors.cell import AS_BUILT, BOTH_CORES, OPTIMISED, PREPARED, TWO_LANES, Cell
from benchmarks.two_processors.claims import part_of_bound
from benchmarks.two_processors.processors import Processors
from benchmarks.two_processors.slow_head import as_head, competitors
from benchmarks.two_processors.tables import rows_of
from benchmarks.two_processors.wholes import together
from split_infer_ros.engines.engine import Engine
from split_infer_ros.runtime.priority import HEAD

TWO = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the benchmark needs two processors")


@pytest.mark.parametrize(("usable", "chosen"), [({0, 1}, (0, 1)), ({7, 12, 3}, (3, 7))])
def test_the_first_two_processors_are_taken(usable: set[int], chosen: tuple[int, int]) -> None:
    found = Processors.choose(usable)
    assert (found.accelerator, found.host) == chosen
    assert (str(found.stages.backbone), str(found.stages.head)) == tuple(map(str, chosen))
    assert [(str(each.backbone), str(each.head)) for each in found.lanes] == [(str(one), str(one)) for one in chosen]
    assert found.both.backbone.numbers == found.both.head.numbers == set(chosen)


def test_one_processor_is_too_few() -> None:
    with pytest.raises(SystemExit, match="needs two processors, and this process may use only 5"):
        Processors.choose({5})


@pytest.mark.parametrize(("cores", "part"), [(1, "both of one core"), (2, "of two cores")])
def test_it_says_whether_both_belong_to_one_core(cores: int, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors_module, "num_physical_cores", lambda: cores)
    assert f"processor 0 plays the accelerator and 1 the CPU; they are {part}" in str(Processors(0, 1))


def test_stages_alone_and_together_are_told_apart() -> None:
    batches = [batch(0.0, 1.0, 2.0), batch(1.0, 1.5, 3.0), batch(6.0, 1.0, 2.5)]
    found = stage_figures(batches, (3.0, 7.0), num_batches=1)
    assert (found["backbone_alone_s"], found["head_alone_s"]) == pytest.approx((1.0, 2.5))
    assert (found["backbone_s"], found["head_s"]) == pytest.approx((1.0, 2.5))  # between 3 and 7
    assert (found["backbone_busy"], found["head_busy"]) == pytest.approx((0.25, 0.625))
    assert found["batch_s"] == pytest.approx(4.5)


def test_busy_times_are_steps() -> None:
    spans = [(2.0, 3.0), (1.0, 2.0), (4.0, 6.0), (4.5, 5.0)]
    assert timeline.merged(spans) == [(1.0, 3.0), (4.0, 6.0)]
    assert timeline.steps([(1.0, 3.0)], start=0.5, level=1.5) == [(0.0, 1.5), (500.0, 2.5), (2500.0, 1.5)]
    curve = timeline.busy_times("after", [batch(10.0, 1.0, 0.5), batch(11.0, 1.0, 0.5)])
    assert list(curve.points) == ["accelerator", "CPU"]
    assert [round(x) for x, _ in curve.points["accelerator"]] == [0, 0, 2000]
    assert [(round(x), y) for x, y in curve.points["CPU"]] == [(0, 0), (1000, 1), (1500, 0), (2000, 1), (2500, 0)]


def test_lanes_add_their_speeds_up() -> None:
    lanes = [
        {"images_per_s": 60.0, "images": 8.0, "batch_s": 0.2},
        {"images_per_s": 40.0, "images": 8.0, "batch_s": 0.3},
    ]
    assert together(lanes) == {"images_per_s": 100.0, "images": 16.0, "batch_s": 0.25}


@TWO
def test_competitors_keep_the_heads_processor_busy_and_end() -> None:
    cores = Processors.choose(os.sched_getaffinity(0)).stages.head
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = set(children.read_text().split())
    with competitors(2, cores):
        started = [int(each) for each in set(children.read_text().split()) - before]
        assert len(started) == 2
        for pid in started:
            assert os.sched_getaffinity(pid) == cores.numbers
            assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, os.getpid()) + HEAD
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


def test_the_work_beside_competitors_has_the_heads_priority() -> None:
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert as_head(lambda: os.getpriority(os.PRIO_PROCESS, 0)) == usual + HEAD
    assert os.getpriority(os.PRIO_PROCESS, 0) == usual


@TWO
@pytest.mark.slow
def test_all_configurations_take_turns_and_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "NUM_IMAGES", 8)
    subject = subjects.Subject("shapes", Processors.choose(os.sched_getaffinity(0)), QUICK_EFFORT)
    cell = Cell(subject, Engine.TORCH, 2, num_batches=2)
    begin = time.monotonic()
    cell.contest.take()
    seconds = time.monotonic() - begin
    result = cell.result()
    cell.close()
    rows = rows_of(result)
    assert {AS_BUILT, PREPARED, OPTIMISED, BOTH_CORES, TWO_LANES, result.split} <= {
        row["configuration"] for row in rows
    }
    assert {row["agreement"] for row in rows} == {1.0}
    for row in rows:
        assert 0 < row["batch_ms"] <= 1e3 * seconds
        assert row["images_per_s"] > 0
    assert 0 < part_of_bound(result, result.split)[0] <= 1.0001
    assert part_of_bound(result, PREPARED)[0] < 1
