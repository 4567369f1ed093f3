"""Does the benchmark run and report? What it finds depends on the machine and is not for a test."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import _split_contest as contest
import pytest
import torch
import unified_splitting as bench
from _gpu_only import Optimised

from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.detections import Detections
from split_infer_ros.pipeline.profiler import Effort

FACTS = {"agreement": 1.0, "prediction_off": 0.05, "overlap_efficiency": 0.9}


@pytest.mark.parametrize("name", ["resnet18", "ssdlite320"])  # a classifier and a detector
def test_all_configurations_of_a_model_are_measured_and_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "PICTURES", 16)
    effort = Effort(rounds=1, warm_up=1, batches=1, seconds=0.0, runs=1, repeats=1, most_s=0.0)
    extent = contest.Extent([2], 2, 1, 1, math.inf, effort, 1, 1, 1, 1)
    rows = bench.compare(name, torch.device("cpu"), extent, with_fixed_cuts=True)
    assert [row["configuration"] for row in rows] == ["baseline", "optimised", "split", "fixed cut"]
    for row in rows[:3]:
        assert row["images_per_s"] > 0
        assert row["latency_ms"] > 0
        assert row["agreement"] == 1
        assert row["batches"] == 1
    assert rows[2]["overlap_efficiency"] > 0
    assert rows[3]["cut"] != rows[3]["auto"] == rows[2]["cut"]
    report = bench.conclude(rows, on_gpu=False)
    assert json.loads(json.dumps(report.as_json(), allow_nan=False))["bench"] == "unified_splitting"


def test_what_is_claimed_with_and_without_a_gpu() -> None:
    rows = [
        {"model": "m", "batch_size": size, "configuration": configuration, "images_per_s": speed, **facts}
        for size, speeds in ((16, (100, 150, 160)), (64, (100, 170, 160)))
        for configuration, speed, facts in zip(("baseline", "optimised", "split"), speeds, ({}, {}, FACTS), strict=True)
    ]
    rows.append({"model": "m", "batch_size": 16, "configuration": "fixed cut", "auto_over_fixed": 0.99})
    values = {claim.name: (claim.value, claim.holds) for claim in bench.conclude(rows, on_gpu=True).claims}
    assert values["m, batch 64: split, times the baseline's"] == (1.6, True)
    assert values["m: split, times the optimised, least"] == (160 / 170, False)
    assert values["overlap efficiency, median"] == (0.9, False)
    assert values["planner's cut, part of the best fixed one, least"] == (0.99, True)
    assert values["predicted throughput, off by, mean"] == (5.0, True)
    on_cpu = {claim.name for claim in bench.conclude(rows, on_gpu=False).claims}
    assert set(values) - on_cpu == {"m: split, times the optimised, least", "overlap efficiency, median"}


def test_a_run_counts_after_its_warm_up_and_compares_picture_by_picture() -> None:
    pictures = contest.draw_pictures(find_model("resnet18"), 3)
    assert pictures[0].data.shape == (256, 256, 3)
    assert len({int(picture.data.sum()) for picture in pictures}) == 3
    run = contest.Run(pictures, 2, warm_up=1)
    extent = replace(bench.QUICK, samples=5, batches=2, most_seconds=math.inf)
    number = 0
    for batch in run.batches(extent):
        for picture in batch:
            assert picture is pictures[number % 3]
            nothing = torch.zeros(1)
            run.note([Detections(nothing, nothing, torch.tensor([number % 3 if number else 7]))])
            number += 1
    assert number == 2 * (1 + 3)
    assert run.count == 3
    assert run.period_s > 0
    assert run.latency_s > 0
    assert run.agreement([0, 1, 2]) == 7 / 8
    assert run.agreement([0]) == 2 / 3


def test_of_a_detector_some_hundreds_of_candidates_are_left_and_an_error_ends_its_rival(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contest, "PICTURES", 16)
    ground = contest.Contest("ssdlite320", torch.device("cpu"), bench.QUICK)
    assert 0 < ground.limits.score_threshold < 1

    def fail(found: list[Detections]) -> None:
        raise ValueError(f"{len(found[0])} objects")

    rival = Optimised(ground.model, 1, ground.limits)
    with pytest.raises(ValueError, match=r"[1-9]\d* objects"):
        rival.run(iter([[picture] for picture in ground.pictures]), fail)


def test_a_run_ends_in_time() -> None:
    run = contest.Run(contest.draw_pictures(find_model("resnet18"), 1), 1, warm_up=1)
    assert len(list(run.batches(replace(bench.FULL, most_seconds=0.0)))) == 2
