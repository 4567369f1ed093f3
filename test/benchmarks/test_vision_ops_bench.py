from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

import _operator_times as operators
import pytest
import torch
import vision_ops as bench
from _operator_times import FORMS, LIBRARY, NAIVE, OURS, Contest, Extent

CPU = torch.device("cpu")
BRIEF = Extent((5, 30), (1, 2), 60, 30, 0.0, 1)


@pytest.mark.parametrize("make", [operators.labelled, operators.argsort, operators.sums, operators.decode])
def test_rivals_find_the_same(make: Any) -> None:
    contest = make(CPU, torch.Generator().manual_seed(0), 2, 30)
    ours, library, naive = (contest.forms[name]() for name in FORMS)
    if contest.operator == operators.LABELLED:
        for one, *others in zip(ours, library, naive, strict=True):
            for other in others:
                assert other.tolist() == one[one >= 0].tolist()
    elif contest.operator == operators.ARGSORT:
        assert (ours.view(2, 30) - torch.tensor([[0], [30]])).tolist() == library.tolist()
        assert [row.tolist() for row in naive] == library.tolist()
    else:
        torch.testing.assert_close(ours, library)
        flat = torch.tensor([[torch.as_tensor(one).flatten().tolist() for one in row] for row in naive])
        torch.testing.assert_close(flat.view_as(ours), ours)


def test_regions_are_the_same() -> None:
    contest = operators.align(CPU, torch.Generator().manual_seed(0), 1, 10)
    torch.testing.assert_close(contest.forms[OURS](), contest.forms[LIBRARY]())
    assert len(contest.forms[NAIVE]()) == 10


def test_the_naive_form_is_left_out_where_it_takes_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "HEADS_BOXES", 20)
    found = list(operators.contests(CPU, BRIEF))
    assert [each.operator for each in found[:2]] == [operators.HEAD, operators.HEAVY]
    assert {each.operator for each in found[2:]} == set(operators.OPERATORS)
    assert {each.images * each.size for each in found[2:]} == {5, 10, 30, 60}
    assert all((NAIVE in each.forms) == (each.images * each.size <= 30) for each in found[2:])


def test_forms_take_turns() -> None:
    calls: list[str] = []
    contest = Contest("sum", 1, 5, {name: partial(calls.append, name) for name in FORMS})
    times = operators.measure(contest, CPU, Extent((), (), 0, 0, 0.05, 4))
    count = len(times[OURS])
    assert count == len(times[LIBRARY]) >= 4
    assert len(times[NAIVE]) == 4
    assert calls[: len(FORMS) + 4] == [*FORMS, LIBRARY, OURS, OURS, LIBRARY]
    assert len(calls) == len(FORMS) + 2 * count + 4


def test_a_long_turn_is_enough() -> None:
    contest = Contest("sum", 1, 5, {name: partial(time.sleep, 0.01) for name in (OURS, LIBRARY)})
    times = operators.measure(contest, CPU, Extent((), (), 0, 0, 1e-4, 4))
    assert [len(found) for found in times.values()] == [1, 1]


def of(operator: str, device: str, images: int, size: int, ours: float, library: float) -> dict[str, Any]:
    return {
        "operator": operator, "device": device, "images": images, "size": size, "ours_us": ours, "library_us": library
    }  # fmt: skip


def test_what_is_claimed() -> None:
    rows = [
        of(operators.HEAD, "cpu", 16, 3234, 10, 110),
        of(operators.HEAVY, "cpu", 16, 3234, 10, 15),
        of(operators.SUM, "cpu", 1, 10, 40, 10),
        of(operators.SUM, "cpu", 1, 100, 30, 10),
        of(operators.SUM, "cpu", 16, 100, 10, 9),
        of(operators.SUM, "cpu", 1, 1000, 10, 20),
    ]
    claims = {claim.name: claim for claim in bench.conclude(rows)}
    assert claims["box_nms of a head, CPU, times torchvision's loop"].value == 11
    assert not claims["box_nms of a head, heavy, CPU, times torchvision's loop"].holds
    assert claims["prefix_sum, CPU, 1,000 and more, times the library's, least"].value == 0.9
    assert claims["prefix_sum, CPU, fewer, over the library's, most"].value == 30
    assert math.isnan(claims["roi_align, CPU, fewer, over the library's, most"].value)
    assert not any("GPU" in name for name in claims)
    on_gpu = [of(operators.LABELLED, "cuda", 1, 1000, 10, 1), of(operators.LABELLED, "cuda", 4, 1000, 10, 20)]
    claims = {claim.name: claim for claim in bench.conclude([*rows, *on_gpu])}
    assert claims["box_nms of batches, GPU, times torchvision's, least"].value == 2
