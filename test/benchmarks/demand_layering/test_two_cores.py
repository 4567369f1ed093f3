"""The benchmark of the three stages, on the smallest model."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from benchmarks.common.claim import Verdict
from benchmarks.demand_layering import __main__ as bench
from benchmarks.demand_layering import child
from benchmarks.demand_layering.stage_contest import OPTIMISED, PAPERS_ORDER, PLACES, StageContest
from benchmarks.demand_layering.stages import PacedFile
from benchmarks.demand_layering.turns import pass_s
from split_infer_ros.runtime.inference import inference_mode

pytest.importorskip("torch")
PAGE = 4096


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StageContest]:
    path = tmp_path_factory.mktemp("packed") / "w"
    with inference_mode(), closing(StageContest("shapes", path, nullcontext, nullcontext)) as stages:
        stages.contest.take()
        yield stages


def test_each_pipeline_has_the_papers_places(stages: StageContest) -> None:
    places = {rival: stages.plans[rival].ring_bytes / stages.block_bytes for rival in PLACES}
    assert places == pytest.approx(PLACES, rel=0.1)  # places are whole pages
    assert stages.plans[child.SYNCHRONOUS].is_lockstep
    assert stages.plans[child.ASYNCHRONOUS].staging is not None
    assert stages.plans[child.TWO_STAGE].staging is None


def test_a_row_has_the_prediction_of_each_pipeline(stages: StageContest) -> None:
    rows = {row["way"]: row for row in stages.rows()}
    assert {child.RESIDENT, OPTIMISED, *PLACES} <= set(rows)
    for way, row in rows.items():
        assert row["delay_ms"] > 0
        assert ("predicted_ms" in row) == (way != child.RESIDENT)
        assert row["memory_mib"] <= rows[child.RESIDENT]["memory_mib"] or way in PLACES
    memories = [memory for memory, _ in stages.curve()]
    assert memories == sorted(memories)
    assert rows[child.TWO_STAGE]["memory_mib"] in memories


def test_claims_of_the_papers_model_can_fail(stages: StageContest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "name", "yolov4")
    figures, turns = stages.contest.figures, 20
    for name in figures:
        monkeypatch.setitem(figures, name, [0.1] * turns)
    slow = {child.ASYNCHRONOUS: 0.3, child.TWO_STAGE: 0.2, OPTIMISED: 0.102}
    for name, seconds in slow.items():
        monkeypatch.setitem(figures, name, [seconds] * turns)
    verdicts = {claim.name: claim.verdict for claim in stages.claims(stages.contest)}
    for faster, slower in PAPERS_ORDER:
        assert verdicts[f"yolov4, two cores: delay of {faster}, part of that of {slower}"] is Verdict.FAILS
    assert verdicts["yolov4, two cores: optimised, later than resident"] is Verdict.FAILS
    assert verdicts["yolov4, two cores: predicted delay, off by at most"] is Verdict.FAILS
    assert verdicts["yolov4, two cores: predicted delay, off by, median of pipelines"] in (Verdict.HOLDS, Verdict.FAILS)
    for name in slow:
        monkeypatch.setitem(figures, name, [0.1] * turns)
    held = {claim.verdict for claim in stages.claims(stages.contest) if "holds" not in claim.name}
    assert held == {Verdict.HOLDS}


def test_paced_file_is_not_read_faster_than_its_rate(tmp_path: Path) -> None:
    path, count, rate = tmp_path / "file", 20, 100 * PAGE
    path.write_bytes(os.urandom(count * PAGE))
    memory = memoryview(bytearray(PAGE))
    file = PacedFile(path, os.open(path, os.O_RDONLY), is_direct=False)
    file.bytes_s = rate
    start = time.perf_counter()
    for index in range(count):
        file.read(index * PAGE, memory, "layer")
        assert bytes(memory) == path.read_bytes()[index * PAGE : (index + 1) * PAGE]
    assert time.perf_counter() - start >= count * PAGE / rate
    file.close()


def test_passes_are_timed_for_as_long_as_wanted() -> None:
    passes = []
    assert pass_s(lambda images: passes.append(time.sleep(0.01)) or (), None, 1, group_s=0.05) >= 0.01
    assert 2 <= len(passes) <= 6


def test_command_needs_two_cores(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["demand_layering", "--two-cores"])
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    with pytest.raises(SystemExit):
        bench.main()
    assert "needs two cores" in capsys.readouterr().err
