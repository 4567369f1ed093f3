"""Do rivals find the same, is each case asked what it should be, and does the worst case decide?"""

from __future__ import annotations

import json
import math
from typing import Any

import _operator_forms as forms
import _operator_times as operators
import pytest
import torch
import vision_ops as bench
from _operator_forms import FORMS, LIBRARY, NAIVE, OURS, Case
from _operator_times import Extent, OperatorContest, Question

from split_infer_ros.telemetry.claim import Verdict

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
BRIEF = Extent((5, 30), (1, 2), 60, 30, 2)


@pytest.mark.parametrize("make", [forms.labelled, forms.argsort, forms.sums, forms.decode])
def test_rivals_find_the_same(make: Any) -> None:
    case = make(CPU, torch.Generator().manual_seed(0), 2, 30)
    ours, library, naive = (case.forms[name]() for name in FORMS)
    if case.operator == forms.LABELLED:
        for one, *others in zip(ours, library, naive, strict=True):
            for other in others:
                assert other.tolist() == one[one >= 0].tolist()
    elif case.operator == forms.ARGSORT:
        assert (ours.view(2, 30) - torch.tensor([[0], [30]])).tolist() == library.tolist()
        assert [row.tolist() for row in naive] == library.tolist()
    else:
        torch.testing.assert_close(ours, library)
        flat = torch.tensor([[torch.as_tensor(one).flatten().tolist() for one in row] for row in naive])
        torch.testing.assert_close(flat.view_as(ours), ours)


def test_regions_are_the_same() -> None:
    case = forms.align(CPU, torch.Generator().manual_seed(0), 1, 10)
    torch.testing.assert_close(case.forms[OURS](), case.forms[LIBRARY]())
    assert len(case.forms[NAIVE]()) == 10


def test_the_naive_form_is_left_out_where_it_takes_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "HEADS_BOXES", 20)
    found = list(operators.cases(CPU, BRIEF))
    assert [(each.operator, each.images) for each in found[:2]] == [(forms.HEAD, 2), (forms.HEAVY, 2)]
    assert {each.operator for each in found[2:]} == set(forms.OPERATORS)
    assert {each.values for each in found[2:]} == {5, 10, 30, 60}
    assert all((NAIVE in each.forms) == (each.values <= 30) for each in found[2:])


def questions_on(device: torch.device, operator: str, images: int, size: int) -> list[str]:
    case = Case(operator, images, size, {})
    return [each.name for each in operators.questions_of(device, BRIEF) if each.concerns(case)]


def test_each_case_on_a_cpu_is_asked_one_question() -> None:
    name = "box_nms of a head, heavy, 2 images, CPU, times torchvision's loop"
    assert questions_on(CPU, forms.HEAVY, 2, 20) == [name]
    assert questions_on(CPU, forms.SUM, 1, 100) == ["prefix_sum, CPU, fewer, over the library's, most"]
    assert questions_on(CPU, forms.SUM, 16, 100) == ["prefix_sum, CPU, 1,000 and more, times the library's, least"]


def test_a_gpu_is_asked_about_batches_and_many_values() -> None:
    batches = ["box_nms of batches, GPU, times torchvision's, least"]
    assert questions_on(GPU, forms.HEAD, 2, 20) == batches
    assert questions_on(GPU, forms.LABELLED, 4, 10) == batches
    assert questions_on(GPU, forms.LABELLED, 1, 1000) == []
    assert questions_on(GPU, forms.ARGSORT, 1, 1000) == ["segmented_argsort, GPU, 1,000 and more, times torch's, least"]
    assert questions_on(GPU, forms.ARGSORT, 1, 100) == []


def timed(ours: float, library: float, turns: int = 12) -> OperatorContest:
    """A contest whose rivals took so many seconds in each turn."""
    made = OperatorContest(Case("sum", 1, 5, dict.fromkeys(FORMS, int)), CPU, [])
    made.contest.figures.update({OURS: [ours] * turns, LIBRARY: [library] * turns})
    made.contest.turns = turns
    return made


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


def test_a_faster_operator_takes_less_than_nothing_more() -> None:
    more = operators.claim(Question("more", lambda case: True, 25.0, is_ratio=False), [timed(1.0, 4.0)])
    assert more.found.value == pytest.approx(-3e6)
    assert more.verdict == Verdict.HOLDS


def test_a_question_without_cases_makes_no_claim() -> None:
    asked = [Question("none", lambda case: False, 1.0), Question("all", lambda case: True, 1.0)]
    assert [claim.name for claim in bench.answers(asked, [timed(1.0, 2.0)])] == ["all"]


def test_a_small_run_reports_each_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "HEADS_BOXES", 20)
    monkeypatch.setattr(forms, "HEADS_CLASSES", 3)
    contests = bench.Contests([CPU], BRIEF, [], [])
    contests.take_turns(0.0)
    report = contests.report()
    assert len(report.claims) == 2 + 5  # heads, and operators with fewer than 1,000 values
    assert {claim.verdict for claim in report.claims} == {Verdict.UNCLEAR}  # of one turn each
    assert all(row["us"] > 0 and row["peak_mb"] > 0 and row["cpu_busy"] >= 0 for row in report.rows)
    small = [row for row in report.rows if row["operator"] == forms.SUM and row["size"] == 5 and row["images"] == 1]
    assert [row["rival"] for row in small] == list(FORMS)
    assert [panel.title for panel in report.panels] == [
        "box_nms of a head, cpu, 2 x 20",
        "box_nms of a head, heavy, cpu, 2 x 20",
    ]
    assert json.loads(json.dumps(report.as_json(), allow_nan=False))["bench"] == "vision_ops"
    assert all(math.isfinite(claim.found.value) for claim in report.claims)
