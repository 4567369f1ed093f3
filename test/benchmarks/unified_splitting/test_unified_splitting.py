"""The benchmark measures what it claims. Its results depend on the machine, so no test checks them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from benchmark_commands import reported
from brightness_models import frame
from brightness_pipeline import bright_model
from hypothesis import given, strategies
from simulated_gpu import Gpu, simulated
from simulated_settings import drawn

from benchmarks.common.claim import Verdict
from benchmarks.common.images import draw_images
from benchmarks.common.report import arguments
from benchmarks.rivals import pipelines as rivals
from benchmarks.rivals.head_process import Weights
from benchmarks.rivals.image_feed import ImageFeed
from benchmarks.rivals.pipelines import SplitPipeline, covered
from benchmarks.unified_splitting import __main__ as bench
from benchmarks.unified_splitting import claims, contest
from benchmarks.unified_splitting import subject as subjects
from benchmarks.unified_splitting.copy_calls import CopyCalls
from benchmarks.unified_splitting.gpu_only import Optimised, Prepared
from split_infer_ros.buffers.memory_allocation import allocate
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.server.profiling.profiler import Effort
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_network import TorchNetwork

CPU = torch.device("cpu")
EFFORT = Effort(rounds=1, warm_up=1, batches=1, seconds=0.0, runs=1, repeats=1, max_s=0.0)


def extent(batch_sizes: Sequence[int], num_fixed: int, num_tried: int) -> subjects.SplitExtent:
    return subjects.SplitExtent(
        batch_sizes=batch_sizes,
        min_samples=0,
        turn_s=0.0,
        profile_effort=EFFORT,
        num_fixed=num_fixed,
        num_tried=num_tried,
    )


TINY = extent([2], num_fixed=1, num_tried=1)
TIMES = {"backbone_alone_s": 0.09, "head_alone_s": 0.05, "latency_s": 0.3, "backbone_busy": 0.9, "head_busy": 0.5}


def count_copy_calls(model: SplitModel, settings: StageSettings, pictures: object, connection: object) -> CopyCalls:
    """Returns three copies, of which a hand-over to another process adds one."""
    return CopyCalls(split=3, own=3 if connection is None else 2)


class InOneProcess(LocalPipeline):
    """Stands in for a pipeline of two processes."""

    def __init__(self, *args: Any, weights: Weights, **kwargs: Any) -> None:
        assert weights
        super().__init__(*args, **kwargs)

    def close(self) -> None:
        self.backbone.close()


def find_small(name: str) -> ModelEntry:
    """Returns a model of the catalogue. A classifier, which takes images of any size, gets small ones."""
    entry = find_model(name)
    small = replace(entry.preprocess, height=64, width=64, shorter_side=72)
    return replace(entry, preprocess=small) if name == "resnet18" else entry


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves copies to test_copy_calls.py, and processes to test_two_processes.py."""
    monkeypatch.setattr(subjects, "NUM_IMAGES", 16)
    monkeypatch.setattr(subjects, "find_model", find_small)
    monkeypatch.setattr(rivals, "TwoProcessPipeline", InOneProcess)
    monkeypatch.setattr(subjects, "count_copy_calls", count_copy_calls)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "ssdlite320"])  # a classifier and a detector
def test_all_configurations_take_turns_and_agree(name: str) -> None:
    match = contest.Match(subjects.Subject(name, CPU, TINY), 2, with_fixed_split_points=True)
    match.contest.take()
    match.contest.take()
    result = match.result()
    match.close()
    report = claims.conclude([result], on_gpu=True)
    rows = {row["configuration"]: row for row in report.rows}
    assert set(contest.WHOLE_MODELS) < set(rows)
    for row in rows.values():
        assert row["turns"] == 2
        assert row["timed_samples"] == 2 * 2 * match.batches_a_turn
        assert row["agreement"] == 1
        assert min(row[figure] for figure in ("images_per_s", "latency_ms", "peak_mb", "cpu_busy")) > 0
    for row in [rows[result.planners], *(rows[rival] for rival in result.fixed)]:
        assert (row["memory_policy"], row["memory_reason"]) == ("host", "the backbone runs on the CPU")
        assert 0 < row["backbone_busy"] <= 1
        assert 0 < row["head_busy"] <= 1
        assert row["overlap_efficiency"] > 0
        assert (row["copy_calls"], row["copy_calls_added"]) == (3, 0)
    assert rows[contest.TWO_PROCESSES]["copy_calls_added"] == 1
    assert rows[contest.TWO_PROCESSES]["split_point"] == rows[result.planners]["split_point"]
    assert len({row["split_point"] for row in rows.values() if "split_point" in row}) == len(rows) - 4
    assert json.loads(json.dumps(report.as_json(), allow_nan=False))["bench"] == "unified_splitting"


@pytest.mark.parametrize(
    ("name", "split_point"),
    [
        ("mobilenet_v2", "classifier.0"),
        ("efficientnet_b2", "classifier.0"),
        ("vit_tiny", "getitem"),  # the class token
        ("resnet18", "flatten"),
        ("ssdlite320", "backbone.extra.3.2"),
        ("ssd300", "backbone.extra.4.3"),
    ],
)
def test_the_papers_split_point_is_before_the_classifier(name: str, split_point: str) -> None:
    subject = subjects.Subject.__new__(subjects.Subject)
    subject.entry = find_model(name)
    subject.model = SplitModel(TorchNetwork(subject.entry, subject.entry.build()))
    assert subject.papers_split_point == split_point


@pytest.mark.slow
@pytest.mark.parametrize("is_papers", [True, False])
def test_the_papers_split_point_always_has_a_row(is_papers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subjects.Subject("shapes", CPU, TINY)
    planners = contest.plan(subject.profile).split_point
    other = next(point.name for point in subject.model.split_points if point.name != planners)
    monkeypatch.setattr(subjects.Subject, "papers_split_point", planners if is_papers else other)
    match = contest.Match(subject, 2, with_fixed_split_points=False)
    match.contest.take()
    split_points = {row["configuration"]: row.get("split_point") for row in match.result().rows}
    match.close()
    assert split_points.pop(contest.TWO_PROCESSES) == planners
    splits = {name: split_point for name, split_point in split_points.items() if split_point}
    assert splits == (
        {contest.PLANNERS_AND_PAPERS: planners} if is_papers else {contest.PLANNERS: planners, contest.PAPERS: other}
    )


@pytest.mark.slow
def test_a_fixed_split_point_competes_if_both_are_the_same() -> None:
    subject = subjects.Subject("shapes", CPU, extent([2], num_fixed=0, num_tried=2))
    (fixed,) = subject.fixed_split_points(subject.papers_split_point, 2)
    assert fixed != subject.papers_split_point
    assert subject.fixed_split_points("input", 2) == []


def result_of(batch_size: int, speeds: dict[str, float], planners: str, fixed: list[str]) -> contest.MatchResult:
    figures = {}
    for rival, speed in speeds.items():
        figures[contest.figure_key(rival, "images_per_s")] = [speed] * 12
        figures |= {
            contest.figure_key(rival, figure): [value * batch_size / 10] * 12 for figure, value in TIMES.items()
        }
    rows = [{"configuration": rival, "copy_calls_added": int(rival in fixed)} for rival in speeds]
    return contest.MatchResult(
        model="mobilenet_v2",
        batch_size=batch_size,
        detects=False,
        figures=figures,
        turn_s=2.0,
        planners=planners,
        fixed=fixed,
        predicted_images_per_s=1.05 * speeds[planners],
        agreement=1.0,
        rows=rows,
    )


def test_a_gpu_adds_claims() -> None:
    whole = dict(zip(contest.WHOLE_MODELS, (80.0, 120.0, 90.0), strict=True)) | {contest.TWO_PROCESSES: 80.0}
    results = [
        result_of(16, {**whole, contest.PLANNERS: 100, contest.PAPERS: 101}, contest.PLANNERS, [contest.PAPERS]),
        result_of(
            64, {**whole, contest.OPTIMISED: 110, contest.PLANNERS_AND_PAPERS: 100}, contest.PLANNERS_AND_PAPERS, []
        ),
    ]
    on_gpu = {claim.name: claim for claim in claims.conclude(results, on_gpu=True).claims}
    values = {name: (round(claim.found.value, 3), claim.verdict) for name, claim in on_gpu.items()}
    assert values == {
        "mobilenet_v2, batch 64: split, times the baseline as built": (1.25, Verdict.HOLDS),
        "mobilenet_v2, batch 64: split, times the baseline prepared": (0.833, Verdict.FAILS),
        "mobilenet_v2: split, times the optimised, least": (0.909, Verdict.FAILS),
        "overlap efficiency, median": (0.9, Verdict.FAILS),
        "planner's split point, part of the best fixed one, least": (0.99, Verdict.HOLDS),
        "predicted throughput, off by, mean": (
            5.0,
            Verdict.UNCLEAR,
        ),  # two predictions, however many turns checked them
        claims.COPIES_CLAIM: (0.0, Verdict.HOLDS),
        "mobilenet_v2, batch 64: two threads, times two processes": (1.25, Verdict.HOLDS),
        "best class as the baseline's, least": (1.0, Verdict.HOLDS),
    }
    papers = [claim.paper for claim in on_gpu.values() if claim.paper]
    assert papers == ["1.112x"]
    on_cpu = {claim.name for claim in claims.conclude(results, on_gpu=False).claims}
    assert set(on_gpu) - on_cpu == {"mobilenet_v2: split, times the optimised, least", "overlap efficiency, median"}
    assert [claim.paper for claim in claims.claims_of(results[0])] == ["1.03 to 1.04x", "", ""]


def test_the_command_reports_made_up_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[subjects.SplitExtent] = []

    def made_up(names: Sequence[str], device: torch.device, *, extent: subjects.SplitExtent, chosen: object) -> Any:
        assert list(names) == ["mobilenet_v2"]
        asked.append(extent)
        speeds = dict.fromkeys((*contest.WHOLE_MODELS, contest.TWO_PROCESSES), 80.0)
        return [result_of(16, {**speeds, contest.PLANNERS_AND_PAPERS: 100}, contest.PLANNERS_AND_PAPERS, [])]

    monkeypatch.setattr(bench, "measure_quickly", made_up)
    monkeypatch.setattr(bench, "prepare_process", lambda: None)
    arguments = ["--quick", "--models", "mobilenet_v2", "--batch", "16", "--device", "cpu"]
    found = reported(bench.main, tmp_path, *arguments)
    assert asked == [replace(bench.QUICK, batch_sizes=[16])]
    values = {claim["name"]: claim["value"] for claim in found["claims"]}
    assert values["mobilenet_v2, batch 16: split, times the baseline as built"] == 1.25
    assert len(found["rows"]) == len(contest.WHOLE_MODELS) + 2


def test_a_feed_continues_where_its_last_turn_ended() -> None:
    images = draw_images(find_model("resnet18"), 3)
    assert images[0].data.shape == (256, 256, 3)
    assert len({int(image.data.sum()) for image in images}) == 3
    feed = ImageFeed(images, 2)
    number = 0
    for _ in range(2):
        for batch in feed.batches(3):
            for image in batch:
                assert image is images[number % 3]
                zeros = torch.zeros(1)
                feed.record([Detections(zeros, zeros, torch.tensor([number % 3 if number else 7]))])
                number += 1
        start, end = feed.timed_span(2)
        assert feed.figures(2)["images_per_s"] == pytest.approx(4 / (end - start))
    assert number == 12
    assert feed.agreement([0, 1, 2]) == 11 / 12
    assert feed.agreement([0]) == 3 / 4


@drawn(3)
@given(seed=strategies.integers(0, 10**6))
def test_the_prepared_baseline_keeps_results_in_order_on_gpu(seed: int) -> None:
    values = list(range(0, 240, 20))
    found: list[int] = []

    def deliver(detections: Sequence[Detections]) -> None:
        found.extend(round(each.scores.item() * 255) for each in detections)

    with simulated(Gpu(Random(seed).randrange)):
        images = [frame(value, "", 4, 4)[0] for value in values]
        Prepared(bright_model(), 2, Limits(0.0)).run(ImageFeed(images, 2).batches(6), deliver)
    assert found == values


def test_the_optimised_baseline_is_recorded_beside_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Page-locked memory that is freed during a recording would spoil it."""
    values = list(range(0, 240, 20))
    found: list[int] = []
    empty = torch.empty
    with simulated() as gpu:
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # the simulation has no such memory
        monkeypatch.setattr(torch, "empty", lambda *sizes, pin_memory=False, **others: empty(*sizes, **others))
        model = bright_model()
        backbone = model.backbone("output")

        def run(images: torch.Tensor) -> Sequence[torch.Tensor]:
            cycle: list[object] = [allocate(Policy.PINNED, 64, gpu.device)]
            cycle.append(cycle)
            return backbone(images)  # type: ignore[no-any-return]

        monkeypatch.setattr(model, "backbone", lambda split_point: run)
        rival = Optimised(model, 2, Limits(0.0))
        feed = ImageFeed([frame(value, "", 4, 4)[0] for value in values], 2)
        rival.run(
            feed.batches(6), lambda detections: found.extend(round(255 * each.scores.item()) for each in detections)
        )
        monkeypatch.undo()
    assert found == values


def test_overlapping_spans_count_once() -> None:
    spans = [(4.0, 6.0), (0.0, 2.0), (5.0, 9.0), (4.5, 5.0)]
    assert covered(spans, 1.0, 8.0) == 1 + 4
    assert covered(spans, 2.0, 4.0) == 0


def test_a_stage_that_works_only_after_the_turn_is_not_busy() -> None:
    assert covered([(0.0, 1.0), (5.0, 7.0)], 0.0, 4.0) == 1


@given(
    strategies.lists(strategies.tuples(strategies.integers(0, 20), strategies.integers(0, 9))),
    strategies.integers(0, 20),
    strategies.integers(0, 20),
)
def test_covered_seconds_are_those_in_any_span(spans: list[tuple[int, int]], start: int, length: int) -> None:
    """All times are small whole numbers, whose sums are exact."""
    seconds = {second for first, lasts in spans for second in range(first, first + lasts)}
    expected = len(seconds & set(range(start, start + length)))
    assert covered([(first, first + lasts) for first, lasts in spans], start, start + length) == expected


@pytest.mark.slow
def test_an_error_in_a_turn_is_raised() -> None:
    subject = subjects.Subject("shapes", CPU, TINY)

    class Broken(ImageFeed):
        def batches(self, count: int) -> Iterator[list[Pixels]]:
            yield list(itertools.islice(self.images, self.batch_size))
            raise ValueError("no more images")

    feed = Broken(subject.images, 2)
    pipeline = SplitPipeline(subject.model, split_point="input", feed=feed, limits=subject.limits, ahead=1)
    with pytest.raises(ValueError, match="no more images"):
        pipeline.take_turn(2, nullcontext())
    pipeline.close()


@pytest.mark.slow
def test_an_error_ends_the_optimised_rival() -> None:
    subject = subjects.Subject("ssdlite320", CPU, TINY)
    assert 0 < subject.limits.score_threshold < 1  # some hundreds of candidates are left

    def fail(found: list[Detections]) -> None:
        raise ValueError(f"{len(found[0])} objects")

    rival = Optimised(subject.model, 1, subject.limits)
    with pytest.raises(ValueError, match=r"[1-9]\d* objects"):
        rival.run(iter([[image] for image in subject.images]), fail)


def test_a_full_run_has_at_least_sixteen_turns() -> None:
    def choice(size: int) -> subjects.SplitChoice:
        return subjects.SplitChoice("split_point", size, throughput=100.0, latency_s=0.1)

    batches = [bench.FULL.batches_a_turn(choice(size)) for size in bench.FULL.batch_sizes]
    assert batches == [16, 8, 4, 2]
    assert bench.QUICK.batches_a_turn(choice(16)) == 2
    assert bench.QUICK.batches_a_turn(choice(1)) == 20


@pytest.mark.slow
def test_a_full_run_measures_and_reports_every_batch_size(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "FULL", extent([1, 2], num_fixed=1, num_tried=1))
    parser = arguments("")
    parser.set_defaults(batch=None, samples=8)
    chosen = parser.parse_args([])
    found = bench.measure_fully(["shapes"], CPU, extent=bench.extent_of(chosen), chosen=chosen)
    assert [each.batch_size for each in found] == [1, 2]
    for each in found:
        assert all(row["timed_samples"] >= 8 for row in each.rows)
    assert bool(found[0].fixed)
    printed = capsys.readouterr().out
    assert "shapes, batch 2: 0 of 2 turns" in printed
    assert printed.count("best class as the baseline's") == 2
