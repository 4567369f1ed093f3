"""The profiler on the smallest model; what it finds depends on the machine and is not for a test."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.measurements.database import Database
from split_infer_ros.models.detections import Detections
from split_infer_ros.pipeline.frame import Origin
from split_infer_ros.pipeline.in_flight import InFlightBatch
from split_infer_ros.pipeline.local import LocalPipeline
from split_infer_ros.pipeline.profiler import Effort, Profiler
from split_infer_ros.pipeline.settings import BLOCK, StageSettings
from split_infer_ros.pipeline.stored_profile import profile_model
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.planner import plan
from split_infer_ros.split.profile_samples import PERIOD

SMALL = Pixels(torch.zeros((120, 160, 3), dtype=torch.uint8), (0, 1, 2))
LEAST = Effort(rounds=1, warm_up=1, batches=2, seconds=0.0, runs=2, repeats=1, most_s=0.0)


@pytest.fixture(scope="module")
def model() -> SplitModel:
    return load_model(ModelSpec("shapes", "none", "cpu"))


def test_every_cut_is_measured_and_the_planners_choice_as_a_whole(model: SplitModel) -> None:
    samples = Profiler(model, SMALL, effort=LEAST).measure([1, 2])
    assert [(found.split_point, found.batch_size) for found in samples] == [
        (split_point.name, size) for size in (1, 2) for split_point in model.split_points
    ]
    for found in samples:
        assert found.complete
        assert all(seconds >= 0 for costs in found.parts.values() for seconds in costs)
    by_split_point = {found.split_point: found.parts for found in samples if found.batch_size == 2}
    assert by_split_point["input"]["backbone"] == by_split_point["output"]["head"] == (0,)
    assert (
        by_split_point["output"]["backbone"] > by_split_point["neck"]["backbone"] > by_split_point["stem.2"]["backbone"]
    )
    assert by_split_point["stem.2"]["head"] > by_split_point["neck"]["head"]
    whole = [found for found in samples if PERIOD in found.parts]
    assert 2 <= len(whole) <= 1 + 2 * LEAST.runs
    assert {found.batch_size for found in whole} == {1, 2}
    assert all(len(found.parts[PERIOD]) % LEAST.batches == 0 for found in whole)


def test_what_was_measured_once_is_read_from_then_on(
    model: SplitModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(tmp_path / "tuning.jsonl")
    said: list[str] = []
    first = profile_model(model, [1], database, SMALL, effort=LEAST, say=said.append)
    assert said
    said.clear()
    again = profile_model(model, [1], database, SMALL, effort=LEAST, say=said.append)
    assert said == []
    assert str(again) == str(first)  # NaN is not equal to itself
    assert plan(again) == plan(first)
    assert len(again.points) == len(model.split_points)

    lines = database.path.read_text().splitlines()
    edited = lines[0].replace('"costs":[', '"costs":[0.0,')
    database.path.write_text("\n".join([edited, *lines[1:]]) + "\n")
    with caplog.at_level(logging.WARNING):
        profile_model(model, [1], database, SMALL, effort=LEAST, say=said.append)
    assert "line 1 is ignored" in caplog.text
    assert said, "an edited record was taken for a measurement"
    said.clear()
    profile_model(model, [1], database, Pixels(SMALL.data[:100], SMALL.rgb), effort=LEAST, say=said.append)
    assert said, "pictures of another size cost something else"


def test_where_nothing_can_be_kept_the_profile_is_made_all_the_same(
    model: SplitModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    profile = profile_model(model, [1], Database(tmp_path / "file" / "tuning.jsonl"), SMALL, effort=LEAST)
    assert len(profile.points) == len(model.split_points)
    assert "cannot be read" in caplog.text
    assert "the profile is not kept" in caplog.text


def test_a_batch_that_does_not_fit_is_refused_with_a_sentence(
    model: SplitModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def segments() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 TiB.")

    monkeypatch.setattr(model, "segments", segments)
    with pytest.raises(ConfigurationError, match=r"batch size 8: cpu has not the memory.*leave out the largest"):
        Profiler(model, SMALL).measure([8])


@pytest.mark.parametrize("split_point", ["input", "default", "output"])
def test_a_local_pipeline_gives_each_picture_its_result(split_point: str) -> None:
    model = load_model(ModelSpec("shapes", "default", "cpu"))
    found: dict[int, Detections] = {}

    def deliver(origin: Origin, detections: Detections) -> None:
        found[origin.header] = detections

    with LocalPipeline(model, StageSettings(split_point, 2, 60.0, BLOCK), deliver) as pipeline:
        pipeline.feed([SMALL] * 4)
        pipeline.finish()
        assert sorted(found) == [0, 1, 2, 3]
        pipeline.feed([SMALL])  # not a full batch: the end closes it
    assert sorted(found) == [0, 1, 2, 3, 4]
    counts = pipeline.backbone.ledger.counts()
    assert counts.published == counts.received == 5


def test_a_local_pipeline_tells_when_each_batch_was_where_and_may_be_started_again() -> None:
    model = load_model(ModelSpec("shapes", "default", "cpu"))
    batches: list[InFlightBatch] = []
    settings = StageSettings("default", 2, 60.0, BLOCK)
    pipeline = LocalPipeline(model, settings, lambda *_: None, watch=batches.append)
    for starts in (1, 2):
        pipeline.head.start()
        pipeline.backbone.start()
        pipeline.feed([SMALL] * 6)
        pipeline.finish()
        pipeline.backbone.stop(60.0)
        pipeline.head.stop()
        assert len(batches) == 3 * starts
    pipeline.backbone.close()
    for batch in batches:
        times = [time for stage in batch.timeline.slices().values() for time in stage]
        assert times[0] > 0
        assert times == sorted(times)


def test_a_batch_may_wait_long_for_a_slow_head() -> None:
    model = load_model(ModelSpec("shapes", "default", "cpu"))
    pipeline = LocalPipeline(model, StageSettings("default", 1, 60.0, BLOCK), lambda *_: None)
    pool = pipeline.backbone._instance.plan.pool
    lease = pool.acquire()
    assert lease is not None
    pool.publish(lease, 0.0)
    assert pool.collect(30.0) == []
    pipeline.backbone.close()


def test_what_befalls_a_batch_is_the_feeders_to_know() -> None:
    def deliver(origin: Origin, detections: Detections) -> None:
        raise RuntimeError("nobody listens")

    model = load_model(ModelSpec("shapes", "default", "cpu"))
    settings = StageSettings("default", 1, 60.0, BLOCK)
    with LocalPipeline(model, settings, deliver) as pipeline:
        pipeline.feed([SMALL])
        with pytest.raises(RuntimeError, match="nobody listens"):
            pipeline.finish()
