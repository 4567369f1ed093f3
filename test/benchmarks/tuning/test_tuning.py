from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmark_commands import reported

from benchmarks.common.claim import Claim, Verdict
from benchmarks.common.turns import Contest
from benchmarks.rivals.vendor_networks import CUDNN, ONNX_RUNTIME, OPENVINO, OPENVINO_AS_IT_COMPILES, vendors_of
from benchmarks.tuning import __main__ as bench
from benchmarks.tuning import contest
from benchmarks.tuning.contest import BUILT, TUNED, UNTUNED, Rivals, claims_of_model
from benchmarks.tuning.search_replays import Recorded, Replays, claims_of_searches, record_costs
from split_infer_ros.measurements.database import Database
from split_infer_ros.models.catalogue import CATALOGUE
from split_infer_ros.search.space import Space, frozen
from split_infer_ros.split.load import build_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.telemetry.machine import describe_machine

TURNS = 12


def model_row(name: str, turns: int = TURNS, keeps_default: bool = False, **times: float) -> dict[str, Any]:
    """A row whose networks take these times in every turn, on a machine that gets slower."""
    ways = {"built": BUILT, "untuned": UNTUNED, "tuned": TUNED, "ort": ONNX_RUNTIME, "openvino": OPENVINO}
    ways["openvino_as_it_compiles"] = OPENVINO_AS_IT_COMPILES
    samples = {ways[way]: [ms * (1 + 0.1 * turn) for turn in range(turns)] for way, ms in times.items()}
    facts = {"what": "model", "model": name, "difference": 1e-6, "read_ms": [2.0] * turns, "turn_s": 0.5}
    return {**facts, "samples": samples, "keeps_default": keeps_default, "trials": 16, "searched_s": 40.0}


def search_row(kind: str, trials: Sequence[float]) -> dict[str, Any]:
    curves = {"seconds_so_far": [1.0, 2.0], "best_so_far_ms": [3.0, 2.0]}
    return {"what": "search", "search": kind, "trials": list(trials), "turn_s": 0.1, **curves}


def by_name(claims: Sequence[Claim]) -> dict[str, Claim]:
    return {claim.name: claim for claim in claims}


def test_every_model_is_claimed_by_two_ratios() -> None:
    rows = [model_row(name, built=12.0, untuned=11.0, tuned=10.0) for name in bench.FULL.models]
    found = by_name(bench.conclude(rows))
    assert len(rows) == 13
    for name in bench.FULL.models:
        assert name in CATALOGUE
        built, untuned = found[f"{name}, tuned, times as built"], found[f"{name}, tuned, times our untuned default"]
        assert built.found.value == pytest.approx(1.2)
        assert built.verdict == (Verdict.FAILS if built.goal > 1.2 else Verdict.HOLDS)
        assert untuned.found.value == pytest.approx(1.1)
        assert untuned.verdict == Verdict.HOLDS


def test_ratio_to_vendors_is_to_the_best_of_them() -> None:
    rows = [
        model_row("mobilenet_v2", built=30.0, untuned=20.0, tuned=10.0, ort=8.0, openvino=12.0),
        model_row("resnet50", built=12.0, untuned=10.0, tuned=10.0, ort=11.0),
    ]
    found = by_name(bench.conclude(rows))
    assert found["mobilenet_v2, tuned, times the best vendor's library in fp32"].found.value == pytest.approx(0.8)
    assert found["mobilenet_v2, tuned, times the best vendor's library in fp32"].paper
    assert found["the best of these models, tuned, times the best vendor's library in fp32"].verdict == Verdict.HOLDS


def test_a_short_search_decides_nothing_against_vendors() -> None:
    row = model_row("resnet50", built=12.0, untuned=10.0, tuned=10.0, ort=8.0, openvino=30.0)
    vendors = "resnet50, tuned, times the best vendor's library in fp32"
    assert by_name(claims_of_model(row))[vendors].verdict == Verdict.FAILS
    assert by_name(claims_of_model(row | {"searched_s": 18.0}))[vendors].verdict == Verdict.UNCLEAR


def test_vendors_in_another_precision_do_not_count() -> None:
    row = model_row("resnet50", built=12.0, untuned=10.0, tuned=10.0, openvino=9.5, openvino_as_it_compiles=5.0)
    found = by_name(claims_of_model(row))["resnet50, tuned, times the best vendor's library in fp32"]
    assert found.found.value == pytest.approx(0.95)


def test_without_vendors_the_claim_is_unclear() -> None:
    found = by_name(claims_of_model(model_row("resnet50", built=12.0, untuned=10.0, tuned=10.0)))
    assert found["resnet50, tuned, times the best vendor's library in fp32"].verdict == Verdict.UNCLEAR


def test_few_turns_decide_nothing() -> None:
    claims = claims_of_model(model_row("vgg16", turns=9, built=30.0, untuned=20.0, tuned=10.0))
    assert [claim.verdict for claim in claims] == [Verdict.UNCLEAR, Verdict.UNCLEAR]
    assert all(claim.settles_s == pytest.approx(5) for claim in claims), "ten turns of half a second"


def test_kept_default_is_as_fast_as_itself() -> None:
    row = model_row("vgg16", keeps_default=True, built=12.0, untuned=9.0, tuned=10.0)
    _, untuned = claims_of_model(row)
    assert untuned.found.value == 1.0
    assert untuned.found.is_exact
    _, untuned = claims_of_model(row | {"trials": 1})
    assert untuned.verdict == Verdict.UNCLEAR, "nothing else was tried"


def test_unknown_difference_is_unclear() -> None:
    row = model_row("vgg16", built=12.0, untuned=9.0, tuned=10.0) | {"difference": None}
    assert by_name(bench.conclude([row]))["results differ by, most"].verdict == Verdict.UNCLEAR


def test_searches_are_replayed_from_what_was_recorded() -> None:
    space = Space({"a": (1, 2, 3), "b": ("x", "y", "z")})
    costs = {frozen(config): 1.0 + (config["a"] != 3) + (config["b"] != "z") for config in space}
    samples = {config: [cost] * 3 for config, cost in costs.items()}
    replays = Replays(Recorded(space, samples, dict.fromkeys(costs, 2.0)))
    for _ in range(TURNS):
        replays.contest.take()
    rows = {row["search"]: row for row in replays.rows()}
    assert set(rows) == {"guided", "random", "exhaustive"}
    exhaustive = rows["exhaustive"]
    assert exhaustive["trials"] == [9]
    assert exhaustive["best_so_far_ms"] == [3000.0, 3000.0, *[2000.0] * 6, 1000.0]
    assert exhaustive["seconds_so_far"] == pytest.approx([2.0 * (turn + 1) for turn in range(9)], rel=0.5)
    pairs = [pair for row in rows.values() for pair in zip(row["seconds"], row["trials"], strict=True)]
    assert all(seconds > 2 * trials for seconds, trials in pairs)
    assert len(rows["guided"]["trials"]) == len(rows["random"]["trials"]) == TURNS
    assert len(set(rows["random"]["trials"])) > 1, "each replay has a seed of its own"
    assert all(1 <= count <= 9 for count in rows["guided"]["trials"])
    titles = [panel.title for panel in bench.panels_of(list(rows.values()))]
    assert titles == ["trials until within 5 %", "best so far, until within 5 %"]
    (claim,) = replays.contest.conclude(replays.contest)
    assert claim.found.turns == TURNS


def test_near_costs_change_places_from_replay_to_replay() -> None:
    near, far = frozen({"a": 1}), frozen({"a": 2})
    recorded = Recorded(Space({"a": (1, 2)}), {near: [1.0, 3.0, 5.0], far: [2.0, 3.0, 4.0]}, {near: 1.0, far: 1.0})
    assert recorded.costs() == {near: 3.0, far: 3.0}
    drawn = [recorded.drawn_costs(seed) for seed in range(20)]
    assert {min(costs, key=costs.__getitem__) for costs in drawn} == {near, far}
    assert recorded.drawn_costs(3) == drawn[3]


def test_guided_search_is_compared_with_random_search() -> None:
    rows = [search_row("guided", [6.0] * 20), search_row("random", [12.0, 18.0] * 10)]
    (claim,) = claims_of_searches(rows)
    assert claim.found.value == 6 / 15
    assert claim.found.turns == 20
    assert claims_of_searches(rows[:1]) == []


class Drawn:
    """A model whose contest needs no measuring."""

    def __init__(self, name: str, *rest: object) -> None:
        self._name = name
        self.contest = Contest(name, lambda number: {"tuned": 1.0})

    def row(self) -> dict[str, Any]:
        return model_row(self._name, built=20.0, untuned=15.0, tuned=10.0)


def test_a_run_adds_to_what_was_measured_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "Rivals", Drawn)
    before = [model_row(name, built=1.0, untuned=1.0, tuned=1.0) for name in ("resnet50", "mobilenet_v2")]
    before += [search_row("guided", [6.0] * 20), search_row("random", [12.0] * 20)]
    extent = replace(bench.QUICK, models=("mobilenet_v2",))
    report = bench.run(extent, torch.device("cpu"), lambda: 0.0, False, before)
    assert [bench.subject_of(row) for row in report.rows] == ["resnet50", "guided", "random", "mobilenet_v2"]
    found = by_name(report.claims)
    assert found["mobilenet_v2, tuned, times as built"].found.value == 2.0, "what is measured now takes its place"
    assert found["resnet50, tuned, times as built"].found.value == 1.0
    assert found["guided, of random's trials until within 5 %"].found.value == 0.5


def test_the_command_reports_made_up_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "Rivals", Drawn)
    monkeypatch.setattr(bench, "prepare_process", lambda: None)
    found = reported(bench.main, tmp_path, "--quick", "--models", "mobilenet_v2", "--device", "cpu", "--seconds", "0")
    assert [bench.subject_of(row) for row in found["rows"]] == ["mobilenet_v2"]
    values = {claim["name"]: claim["value"] for claim in found["claims"]}
    assert values["mobilenet_v2, tuned, times as built"] == 2.0


def test_rows_of_another_machine_are_refused(tmp_path: Path) -> None:
    file, machine = tmp_path / "tuning.json", describe_machine()
    row = model_row("vgg16", built=1.0, untuned=1.0, tuned=1.0)
    file.write_text(json.dumps({"machine": machine, "rows": [row]}))
    assert bench.rows_of(file) == [row]
    file.write_text(json.dumps({"machine": {**machine, "instruction_set": "none"}, "rows": [row]}))
    with pytest.raises(SystemExit, match="instruction_set"):
        bench.rows_of(file)


def test_networks_take_turns_and_records_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[str] = []

    class Untried:
        def __init__(self, told: object) -> None: ...

        def __enter__(self) -> Untried:
            return self

        def __exit__(self, *reason: object) -> None: ...

    def drawn(*of: object) -> dict[str, Any]:
        return {way: lambda way=way: calls.append(way) for way in (BUILT, UNTUNED, TUNED)}

    monkeypatch.setattr(contest, "TrialProcess", Untried)
    monkeypatch.setattr(contest, "networks", drawn)
    monkeypatch.setattr(contest, "PAUSE_S", 0.0)
    rivals = Rivals("shapes", torch.device("cpu"), Database(tmp_path / "d.jsonl"), 0.0, 0.0, True)
    calls.clear()
    rivals.contest.take()
    rivals.contest.take()
    assert calls == [way for way in (BUILT, UNTUNED, TUNED, UNTUNED, TUNED, BUILT) for _ in range(2)]
    row = rivals.row()
    assert len(row["read_ms"]) == 2
    assert min(row["read_ms"]) > 0
    assert row["keeps_default"], "nothing was tried"
    assert row["usage"][TUNED]["peak_mb"] > 0
    json.dumps(row, allow_nan=False)
    assert [claim.verdict for claim in rivals.contest.conclude(rivals.contest)] == [Verdict.UNCLEAR, Verdict.UNCLEAR]


def test_on_a_gpu_the_vendor_is_cudnn_which_says_what_the_network_says(monkeypatch: pytest.MonkeyPatch) -> None:
    _, module = build_model(ModelSpec("shapes", "none"))
    images = torch.randn(1, 3, 64, 64)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    found = vendors_of(module, images, 1)
    assert list(found) == [CUDNN]
    with torch.inference_mode():
        torch.testing.assert_close(found[CUDNN](), module(images), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_vendors_say_what_the_network_says() -> None:
    _, module = build_model(ModelSpec("squeezenet1_0", "none"))
    images = torch.randn(1, 3, 64, 64)
    found = vendors_of(module, images, 1)
    with torch.inference_mode():
        expected = module(images)
    for run in found.values():
        (answer,) = list(run().values()) if hasattr(run(), "values") else run()
        torch.testing.assert_close(torch.as_tensor(answer), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_searched_space_can_be_tried_on_this_machine() -> None:
    """Every configuration has a cost. Engines that are not installed, or need a GPU, are not in the space."""
    recorded = record_costs("shapes", (1,), 0.01, torch.device("cpu"))
    assert set(recorded.samples) == {frozen(config) for config in recorded.space}
    assert all(cost > 0 for costs in recorded.samples.values() for cost in costs)
