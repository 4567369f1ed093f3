"""The profiler on the smallest model. Its results depend on the machine, so no test checks them."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.measurements.database import Database
from split_infer_ros.models.detections import Detections
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.server.profiling.profiler import Effort, Profiler
from split_infer_ros.server.profiling.stored_profile import profile_model
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.planner import plan
from split_infer_ros.split.profile_samples import ProfilePart

SMALL = Pixels(np.zeros((120, 160, 3), np.uint8), (0, 1, 2))
MINIMAL = Effort(rounds=1, warm_up=1, batches=2, seconds=0.0, runs=2, repeats=1, max_s=0.0)


@pytest.fixture(scope="module")
def model() -> SplitModel:
    return load_model(ModelSpec("shapes", "none", "cpu"))


def test_every_split_point_and_some_pipelines_are_measured(model: SplitModel) -> None:
    samples = Profiler(model, image=SMALL, effort=MINIMAL).measure([1, 2])
    assert [(found.split_point, found.batch_size) for found in samples] == [
        (split_point.name, size) for size in (1, 2) for split_point in model.split_points
    ]
    for found in samples:
        assert found.is_complete
        assert all(seconds >= 0 for costs in found.parts.values() for seconds in costs)
    by_split_point = {found.split_point: found.parts for found in samples if found.batch_size == 2}
    # On a busy machine passes never agree, and then all of them are kept: the number of samples is no property.
    nothing = by_split_point["input"][ProfilePart.BACKBONE], by_split_point["output"][ProfilePart.HEAD]
    assert all(costs and not any(costs) for costs in nothing)
    backbone_s = {name: parts[ProfilePart.BACKBONE] for name, parts in by_split_point.items()}
    assert backbone_s["output"] > backbone_s["neck"] > backbone_s["stem.2"]
    assert by_split_point["stem.2"][ProfilePart.HEAD] > by_split_point["neck"][ProfilePart.HEAD]
    whole = [found for found in samples if ProfilePart.PERIOD in found.parts]
    assert 2 <= len(whole) <= 1 + 2 * MINIMAL.runs
    assert {found.batch_size for found in whole} == {1, 2}
    assert all(len(found.parts[ProfilePart.PERIOD]) % MINIMAL.batches == 0 for found in whole)


def test_stored_measurements_are_read(model: SplitModel, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database = Database(tmp_path / "tuning.jsonl")
    progress: list[str] = []
    first = profile_model(Profiler(model, image=SMALL, effort=MINIMAL, say=progress.append), [1], database)
    assert progress
    progress.clear()
    again = profile_model(Profiler(model, image=SMALL, effort=MINIMAL, say=progress.append), [1], database)
    assert progress == []
    assert str(again) == str(first)  # NaN is not equal to itself
    assert plan(again) == plan(first)
    assert len(again.points) == len(model.split_points)

    lines = database.path.read_text().splitlines()
    edited = lines[0].replace('"costs":[', '"costs":[0.0,')
    database.path.write_text("\n".join([edited, *lines[1:]]) + "\n")
    with caplog.at_level(logging.WARNING):
        profile_model(Profiler(model, image=SMALL, effort=MINIMAL, say=progress.append), [1], database)
    assert "line 1 is ignored" in caplog.text
    assert progress, "an edited record was taken for a measurement"
    progress.clear()
    cut = Pixels(SMALL.data[:100], SMALL.rgb)
    profile_model(Profiler(model, image=cut, effort=MINIMAL, say=progress.append), [1], database)
    assert progress, "images of another size have another cost"


def test_a_profile_is_made_even_if_it_cannot_be_stored(
    model: SplitModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    profile = profile_model(
        Profiler(model, image=SMALL, effort=MINIMAL), [1], Database(tmp_path / "file" / "tuning.jsonl")
    )
    assert len(profile.points) == len(model.split_points)
    assert "cannot be read" in caplog.text
    assert "the profile is not kept" in caplog.text


def test_a_batch_size_beyond_the_memory_is_refused(model: SplitModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def segments() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 TiB.")

    monkeypatch.setattr(model, "segments", segments)
    with pytest.raises(
        ConfigurationError, match=r"batch size 8: cpu does not have enough memory.*leave out the largest"
    ):
        Profiler(model, image=SMALL).measure([8])


@pytest.mark.parametrize("split_point", ["input", "default", "output"])
def test_a_local_pipeline_gives_each_image_its_result(split_point: str) -> None:
    model = load_model(ModelSpec("shapes", "default", "cpu"))
    found: dict[int, Detections] = {}

    def deliver(origin: Origin, detections: Detections) -> None:
        found[origin.header] = detections

    with LocalPipeline(
        model,
        StageSettings(split_point=split_point, batch_size=2, batch_timeout_s=60.0, drop_policy=DropPolicy.BLOCK),
        deliver,
    ) as pipeline:
        pipeline.feed([SMALL] * 4)
        pipeline.finish()
        assert sorted(found) == [0, 1, 2, 3]
        pipeline.feed([SMALL])  # not a full batch: the end closes it
    assert sorted(found) == [0, 1, 2, 3, 4]
    counts = pipeline.backbone.ledger.counts()
    assert counts.published == counts.received == 5


def test_a_restarted_pipeline_reports_every_batch() -> None:
    model = load_model(ModelSpec("shapes", "default", "cpu"))
    batches: list[Batch] = []
    settings = StageSettings(batch_size=2, batch_timeout_s=60.0, drop_policy=DropPolicy.BLOCK)
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
    pipeline = LocalPipeline(
        model, StageSettings(batch_size=1, batch_timeout_s=60.0, drop_policy=DropPolicy.BLOCK), lambda *_: None
    )
    pool = pipeline.backbone.plan.pool
    lease = pool.acquire()
    assert lease is not None
    pool.publish(lease, 0.0)
    assert pool.collect(30.0) == []
    pipeline.backbone.close()


def test_a_failed_batch_raises_when_the_feeder_finishes() -> None:
    def deliver(origin: Origin, detections: Detections) -> None:
        raise RuntimeError("nobody listens")

    model = load_model(ModelSpec("shapes", "default", "cpu"))
    settings = StageSettings(batch_size=1, batch_timeout_s=60.0, drop_policy=DropPolicy.BLOCK)
    with LocalPipeline(model, settings, deliver) as pipeline:
        pipeline.feed([SMALL])
        with pytest.raises(RuntimeError, match="nobody listens"):
            pipeline.finish()
