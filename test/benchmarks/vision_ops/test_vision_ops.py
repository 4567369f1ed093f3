"""Rivals give the same results, each case is asked the right question, and the worst case decides."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmark_commands import reported

from benchmarks.common.claim import Verdict
from benchmarks.common.report import Report
from benchmarks.vision_ops import __main__ as bench
from benchmarks.vision_ops import cases as operator_cases
from benchmarks.vision_ops import contests as operators
from benchmarks.vision_ops.cases import LIBRARY, NAIVE, OURS, RIVALS, Case
from benchmarks.vision_ops.contests import Extent, OperatorContest, Question

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
BRIEF = Extent(sizes=(5, 30), images=(1, 2), max_values=60, max_naive_values=30, head_images=2)


@pytest.mark.parametrize(
    ("make", "device"),
    [
        (operator_cases.labelled, CPU),
        (operator_cases.decode, CPU),
        pytest.param(operator_cases.argsort, GPU, marks=needs_a_gpu),
        pytest.param(operator_cases.sums, GPU, marks=needs_a_gpu),
    ],
)
def test_rivals_give_the_same(make: Any, device: torch.device) -> None:
    case = make(device, torch.Generator().manual_seed(0), 2, 30)
    ours, library, naive = (case.rivals[name]() for name in RIVALS)
    if case.operator == operator_cases.LABELLED:
        for one, *others in zip(ours, library, naive, strict=True):
            for other in others:
                assert other.tolist() == one[one >= 0].tolist()
    elif case.operator == operator_cases.ARGSORT:
        assert (ours.cpu().view(2, 30) - torch.tensor([[0], [30]])).tolist() == library.tolist()
        assert [row.tolist() for row in naive] == library.tolist()
    else:
        torch.testing.assert_close(ours, library)
        flat = torch.tensor([[torch.as_tensor(one).flatten().tolist() for one in row] for row in naive])
        torch.testing.assert_close(flat.view_as(ours), ours.cpu())


def test_regions_of_rivals_are_the_same() -> None:
    case = operator_cases.align(CPU, torch.Generator().manual_seed(0), 1, 10)
    torch.testing.assert_close(case.rivals[OURS](), case.rivals[LIBRARY]())
    assert len(case.rivals[NAIVE]()) == 10


def test_a_slow_naive_rival_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_cases, "HEAD_BOXES", 20)
    cases = list(operators.cases(CPU, BRIEF))
    heads, others = cases[:2], cases[2:]
    assert [(case.operator, case.images) for case in heads] == [(operator_cases.HEAD, 2), (operator_cases.HEAVY, 2)]
    assert {case.operator for case in others} == set(operator_cases.OPERATORS)
    assert {case.values for case in others} == {5, 10, 30, 60}
    assert all((NAIVE in case.rivals) == (case.values <= 30) for case in others)


def questions_on(device: torch.device, operator: str, images: int, size: int) -> list[str]:
    case = Case(operator, images=images, size=size, rivals={})
    return [question.name for question in operators.questions_of(device, BRIEF) if question.concerns(case)]


def test_each_case_on_a_cpu_is_asked_one_question() -> None:
    name = "box_nms of a head, heavy, 2 images, CPU, times torchvision's loop"
    assert questions_on(CPU, operator_cases.HEAVY, 2, 20) == [name]
    assert questions_on(CPU, operator_cases.ALIGN, 1, 100) == ["roi_align, CPU, fewer, over the library's, most"]
    assert questions_on(CPU, operator_cases.ALIGN, 16, 100) == [
        "roi_align, CPU, 1,000 and more, times the library's, least"
    ]
    assert questions_on(CPU, operator_cases.SUM, 1, 100) == []


def test_a_gpu_is_asked_about_batches_and_many_values() -> None:
    batches = ["box_nms of batches, GPU, times torchvision's, least"]
    assert questions_on(GPU, operator_cases.HEAD, 2, 20) == batches
    assert questions_on(GPU, operator_cases.LABELLED, 4, 10) == batches
    assert questions_on(GPU, operator_cases.LABELLED, 1, 1000) == []
    assert questions_on(GPU, operator_cases.ARGSORT, 1, 1000) == [
        "segmented argsort's kernels, GPU, 1,000 and more, times torch's, least"
    ]
    assert questions_on(GPU, operator_cases.ARGSORT, 1, 100) == []


def timed(ours: float, library: float, turns: int = 12) -> OperatorContest:
    """A contest whose rivals took these seconds in each turn."""
    contest = OperatorContest(Case("sum", images=1, size=5, rivals=dict.fromkeys(RIVALS, int)), CPU, [])
    contest.contest.figures.update({OURS: [ours] * turns, LIBRARY: [library] * turns})
    contest.contest.turns = turns
    return contest


def test_the_worst_case_decides() -> None:
    contests = [timed(2.0, 4.0), timed(2.0, 1.8)]
    factor = operators.claim(Question("factor", lambda case: True, 0.95), contests)
    assert factor.found.value == pytest.approx(0.9)
    assert factor.verdict == Verdict.FAILS
    more = operators.claim(Question("more", lambda case: True, 0.3e6, is_ratio=False), contests)
    assert more.found.value == pytest.approx(0.2e6)
    assert more.verdict == Verdict.HOLDS
    assert (
        operators.claim(Question("few", lambda case: True, 0.5), [timed(2.0, 4.0, turns=9)]).verdict == Verdict.UNCLEAR
    )


def test_a_faster_operator_takes_negative_extra_time() -> None:
    more = operators.claim(Question("more", lambda case: True, 25.0, is_ratio=False), [timed(1.0, 4.0)])
    assert more.found.value == pytest.approx(-3e6)
    assert more.verdict == Verdict.HOLDS


def test_a_question_without_cases_makes_no_claim() -> None:
    questions = [Question("none", lambda case: False, 1.0), Question("all", lambda case: True, 1.0)]
    assert [claim.name for claim in bench.answers(questions, [timed(1.0, 2.0)])] == ["all"]


def test_the_command_reports_made_up_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(options: argparse.Namespace) -> Report:
        assert options.quick
        claims = bench.answers([Question("all", lambda case: True, 1.0)], [timed(1.0, 2.0)])
        return Report("vision_ops", claims, rows=[])

    monkeypatch.setattr(bench, "run", run)
    (claim,) = reported(bench.main, tmp_path, "--quick")["claims"]
    assert (claim["name"], claim["value"], claim["verdict"]) == ("all", 2.0, "holds")


def test_a_small_run_reports_each_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_cases, "HEAD_BOXES", 20)
    monkeypatch.setattr(operator_cases, "HEAD_CLASSES", 3)
    contests = bench.Contests([CPU], BRIEF, detectors=[], placed=[])
    contests.take_turns(0.0)
    report = contests.report()
    assert len(report.claims) == 2 + 3  # heads, and operators with fewer than 1,000 values
    assert {claim.verdict for claim in report.claims} == {Verdict.UNCLEAR}  # after a single turn
    assert all(row["us"] > 0 and row["peak_mb"] > 0 and row["cpu_busy"] >= 0 for row in report.rows)
    small = [
        row
        for row in report.rows
        if row["operator"] == operator_cases.DECODE and row["size"] == 5 and row["images"] == 1
    ]
    assert [row["rival"] for row in small] == list(RIVALS)
    assert [panel.title for panel in report.panels] == [
        "box_nms of a head, cpu, 2 x 20",
        "box_nms of a head, heavy, cpu, 2 x 20",
    ]
    assert json.loads(json.dumps(report.as_json(), allow_nan=False))["bench"] == "vision_ops"
    assert all(math.isfinite(claim.found.value) for claim in report.claims)
