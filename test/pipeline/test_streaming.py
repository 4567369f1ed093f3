"""A backbone on streamed weights in the pipeline: set while frames flow, and what fails has a name."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from streamed_run import SETTINGS, Run, change, damage, own_model, packed_in, same

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ConfigurationError, StreamError
from split_infer_ros.pipeline import streaming
from split_infer_ros.pipeline.local import LocalPipeline
from split_infer_ros.pipeline.streaming import stream_backbone
from split_infer_ros.runtime.num_threads import max_threads
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.partitions import backbone_of
from split_infer_ros.weight_streaming.pack import machine, pack_model
from split_infer_ros.weight_streaming.packed_file import read_header
from split_infer_ros.weight_streaming.partition_weights import open_contents
from split_infer_ros.weight_streaming.residency import SYNCHRONOUS, place
from split_infer_ros.weight_streaming.weights_file import WeightsFile


def test_residencies_change_while_frames_flow(run: Run, tmp_path: Path) -> None:
    expected = run.feed()
    for residency in ("two_stage", "auto", "asynchronous", "resident", "synchronous"):
        change(run, weights_residency=residency)
        scores = run.feed()
        assert same(scores, expected), residency
        report = run.pipeline.backbone.report(0.0)
        assert (report.weights is None) == (residency == "resident")
        if report.weights:
            assert report.weights.memory_bytes > 0
            assert report.weights.bandwidth > 0
    assert run.memory_share() < 0.2, "the model's own weights were not given back"
    assert len(list((tmp_path / "split_infer_ros" / "weights").iterdir())) == 1


def test_what_cannot_be_is_refused_and_the_old_way_stays(run: Run, tmp_path: Path) -> None:
    expected = run.feed()
    with pytest.raises(ConfigurationError, match="needs a weights_budget_mb of"):
        change(run, weights_residency="two_stage", weights_budget_bytes=1000.0)
    (tmp_path / "mine").write_bytes(b"no weights")
    with pytest.raises(ConfigurationError, match="no file of packed weights"):
        change(run, weights_residency="two_stage", weights_file=str(tmp_path / "mine"))
    assert same(run.feed(), expected)


def test_frames_whose_weights_do_not_come_are_dropped_by_name(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run.feed()
    change(run, weights_residency="two_stage")
    run.feed()
    plain = WeightsFile.read

    def fail(self: WeightsFile, offset: int, into: memoryview, layer: str) -> None:
        raise StreamError(DropReason.WEIGHTS_UNREADABLE, f"Layer '{layer}' cannot be read.")

    monkeypatch.setattr(WeightsFile, "read", fail)
    with pytest.raises(StreamError, match="Layer"):
        run.feed_often(4)
    assert run.pipeline.backbone.report(0.0).failure.startswith("Layer ")
    monkeypatch.setattr(WeightsFile, "read", plain)
    counts = run.settle()
    assert counts.balanced
    assert set(counts.dropped) == {"weights_unreadable"}
    for _ in range(2):  # what was read ahead may fail once more
        try:
            scores = run.feed()
        except StreamError:
            run.settle()
    assert same(scores, expected)
    assert run.pipeline.backbone.report(0.0).failure == ""


def test_weights_that_were_given_back_are_not_packed_as_zeros(run: Run, tmp_path: Path) -> None:
    expected = run.feed()
    change(run, weights_residency="two_stage")
    path = packed_in(tmp_path)
    whole = path.read_bytes()
    path.unlink()
    with pytest.raises(ConfigurationError, match=r"No such file.* cannot be had again"):
        change(run, weights_residency="asynchronous")
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigurationError, match=r"cut short.* cannot be had again"):
        change(run, weights_residency="asynchronous")
    assert path.stat().st_size == len(whole) // 2
    path.write_bytes(whole)
    change(run, weights_residency="asynchronous")
    assert same(run.feed(), expected)


def test_models_that_share_weights_share_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = own_model()
    split_point = model.split_point("neck")
    for each in (model, model.placed(model.device, model.dtype)):
        partition = stream_backbone(each, split_point, replace(SETTINGS, weights_residency="two_stage"))
        assert partition is not None
        partition.close()
    packed_in(tmp_path)


def test_a_file_of_other_weights_under_the_right_name_is_made_anew(tmp_path: Path, run: Run) -> None:
    expected = run.feed()
    change(run, weights_residency="two_stage")
    path = packed_in(tmp_path)
    change(run, weights_residency="resident")
    pack_model(load_model(ModelSpec("shapes", "random", "cpu")), path, max_threads())
    change(run, weights_residency="two_stage")
    assert same(run.feed(), expected)


def test_a_damaged_layer_refuses_resident_weights_and_the_old_plan_stays(run: Run, tmp_path: Path) -> None:
    expected = run.feed()
    change(run, weights_residency="two_stage")
    run.feed()
    layer, whole = damage(packed_in(tmp_path))
    files = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ConfigurationError, match=f"Layer '{layer}' is not as it was written to .* start the node anew"):
        change(run, weights_residency="resident")
    assert run.pipeline.backbone.settings.weights_residency == "two_stage"
    assert len(list(Path("/proc/self/fd").iterdir())) == files
    packed_in(tmp_path).write_bytes(whole)
    change(run, weights_residency="resident")
    assert same(run.feed(), expected)


def test_a_stage_that_starts_on_a_damaged_layer_says_so_and_may_be_started_again(run: Run, tmp_path: Path) -> None:
    stage = run.pipeline.backbone
    change(run, weights_residency="two_stage", pool_slots=1)
    stage.stop(1.0)
    layer, whole = damage(packed_in(tmp_path))
    change(run, weights_residency="synchronous")
    with pytest.raises(ConfigurationError, match=f"cannot be streamed: Layer '{layer}' is not as it was written"):
        stage.start()
    assert stage.report(0.0).slots_used == 0
    packed_in(tmp_path).write_bytes(whole)
    change(run, weights_residency="asynchronous")
    stage.start()
    assert run.feed()


def test_weights_are_laid_out_for_the_cores_that_the_backbone_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = replace(SETTINGS, weights_residency="two_stage")
    LocalPipeline(own_model(), settings, lambda *_: None, num_threads=(max_threads() + 1, 1)).backbone.close()
    assert read_header(packed_in(tmp_path)).machine == machine(max_threads() + 1)


def test_a_gpus_budget_is_for_the_rings_on_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(streaming, "Stream", lambda device: SimpleNamespace(copy=None))
    model = own_model().placed(torch.device("cuda", 0), torch.float32)
    split_point = model.split_point("neck")
    with pytest.raises(ConfigurationError) as caught:
        stream_backbone(
            model, split_point, replace(SETTINGS, weights_residency=SYNCHRONOUS, weights_budget_bytes=1000.0)
        )
    contents = open_contents(model, backbone_of(model.graph, split_point), packed_in(tmp_path), None)
    needed = 2 * place(SYNCHRONOUS, contents.sizes, contents.uses).plan.capacity + contents.kept_bytes
    assert f"needs a weights_budget_mb of {math.ceil(needed / 1e5) / 10} " in str(caught.value)


def test_another_batch_size_gets_a_file_of_its_own(run: Run, tmp_path: Path) -> None:
    """Its layouts are others; what was given back is read again for it, and given back again."""
    expected = run.feed()
    change(run, weights_residency="two_stage")
    change(run, batch_size=2)
    names = [path.name for path in (tmp_path / "split_infer_ros" / "weights").iterdir()]
    assert sorted(name.rpartition("-")[2] for name in names) == ["1.weights", "2.weights"]
    assert run.memory_share() < 0.2
    for found, wanted in zip(run.feed(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)  # other batches take other kernels
