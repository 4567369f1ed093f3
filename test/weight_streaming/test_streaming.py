"""Streamed weights of a backbone in the pipeline: they change while frames flow, and failures are named."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from networks import graph_of, network_of
from streamed_run import SETTINGS, Run, change, damage, own_model, packed_in, same

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ConfigurationError, StreamError
from split_infer_ros.runtime.num_threads import max_threads
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.partitions import backbone_of
from split_infer_ros.weight_streaming import opening
from split_infer_ros.weight_streaming.pack import pack_model, packing_target
from split_infer_ros.weight_streaming.packed_file import read_header
from split_infer_ros.weight_streaming.packed_partition import open_packed
from split_infer_ros.weight_streaming.residency import Residency, plan_memory
from split_infer_ros.weight_streaming.streaming import stream_backbone
from split_infer_ros.weight_streaming.weights_file import WeightsFile

pytestmark = pytest.mark.numeric

EVERY_RESIDENCY = (
    Residency.TWO_STAGE,
    Residency.AUTO,
    Residency.ASYNCHRONOUS,
    Residency.RESIDENT,
    Residency.SYNCHRONOUS,
)


def test_residencies_change_while_frames_flow(run: Run, tmp_path: Path) -> None:
    expected = run.feed()
    for residency in EVERY_RESIDENCY:
        change(run, weights_residency=residency)
        scores = run.feed()
        assert same(scores, expected), residency
        report = run.pipeline.backbone.report(0.0)
        assert (report.weights is None) == (residency is Residency.RESIDENT)
        if report.weights:
            assert report.weights.memory_bytes > 0
            assert report.weights.bandwidth > 0
    assert run.memory_share() < 0.2, "the model's own weights were not released"
    assert len(list((tmp_path / "split_infer_ros" / "weights").iterdir())) == 1


def test_refused_settings_leave_the_weights_as_they_are(run: Run, tmp_path: Path) -> None:
    expected = run.feed()
    with pytest.raises(ConfigurationError, match="needs a weights_budget_mb of"):
        change(run, weights_residency=Residency.TWO_STAGE, weights_budget_bytes=1000.0)
    (tmp_path / "mine").write_bytes(b"no weights")
    with pytest.raises(ConfigurationError, match="is not a file of packed weights"):
        change(run, weights_residency=Residency.TWO_STAGE, weights_file=str(tmp_path / "mine"))
    assert same(run.feed(), expected)


def test_unreadable_weights_drop_frames_by_reason(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run.feed()
    change(run, weights_residency=Residency.TWO_STAGE)
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
    for _ in range(2):  # weights that were read ahead may fail once more
        try:
            scores = run.feed()
        except StreamError:
            run.settle()
    assert same(scores, expected)
    assert run.pipeline.backbone.report(0.0).failure == ""


def test_released_weights_are_not_packed_as_zeros(run: Run, tmp_path: Path) -> None:
    expected = run.feed()
    change(run, weights_residency=Residency.TWO_STAGE)
    path = packed_in(tmp_path)
    whole = path.read_bytes()
    path.unlink()
    with pytest.raises(ConfigurationError, match=r"No such file.* cannot be read back"):
        change(run, weights_residency=Residency.ASYNCHRONOUS)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigurationError, match=r"truncated.* cannot be read back"):
        change(run, weights_residency=Residency.ASYNCHRONOUS)
    assert path.stat().st_size == len(whole) // 2
    path.write_bytes(whole)
    change(run, weights_residency=Residency.ASYNCHRONOUS)
    assert same(run.feed(), expected)


def test_models_that_share_weights_share_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = own_model()
    split_point = model.split_point("neck")
    for each in (model, model.placed(model.device)):
        partition = stream_backbone(
            each, split_point, replace(SETTINGS, weights_residency=Residency.TWO_STAGE), batch_size=1
        )
        assert partition is not None
        partition.close()
    packed_in(tmp_path)


def test_file_of_other_weights_is_packed_again(tmp_path: Path, run: Run) -> None:
    expected = run.feed()
    change(run, weights_residency=Residency.TWO_STAGE)
    path = packed_in(tmp_path)
    change(run, weights_residency=Residency.RESIDENT)
    pack_model(network_of(load_model(ModelSpec("shapes", "random", "cpu"))), path, num_threads=max_threads())
    change(run, weights_residency=Residency.TWO_STAGE)
    assert same(run.feed(), expected)


def test_damaged_layer_refuses_resident_weights(run: Run, tmp_path: Path) -> None:
    expected = run.feed()
    change(run, weights_residency=Residency.TWO_STAGE)
    run.feed()
    layer, whole = damage(packed_in(tmp_path))
    files = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(
        ConfigurationError, match=f"Layer '{layer}' differs from what was written to .* restart the node"
    ):
        change(run, weights_residency=Residency.RESIDENT)
    assert run.pipeline.backbone.settings.weights_residency is Residency.TWO_STAGE
    assert len(list(Path("/proc/self/fd").iterdir())) == files
    packed_in(tmp_path).write_bytes(whole)
    change(run, weights_residency=Residency.RESIDENT)
    assert same(run.feed(), expected)


def test_a_damaged_layer_is_refused_until_it_is_repaired(run: Run, tmp_path: Path) -> None:
    stage = run.pipeline.backbone
    change(run, weights_residency=Residency.TWO_STAGE, pool_slots=1)
    stage.stop(1.0)
    layer, whole = damage(packed_in(tmp_path))
    with pytest.raises(ConfigurationError, match=f"Layer '{layer}' differs from what was written"):
        change(run, weights_residency=Residency.SYNCHRONOUS)
    assert stage.report(0.0).slots_used == 0
    packed_in(tmp_path).write_bytes(whole)
    change(run, weights_residency=Residency.ASYNCHRONOUS)
    stage.start()
    assert run.feed()


def test_weights_are_laid_out_for_the_backbones_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = replace(SETTINGS, weights_residency=Residency.TWO_STAGE)
    model = own_model().with_threads(max_threads() + 1)
    LocalPipeline(model, settings, lambda *_: None).backbone.close()
    assert read_header(packed_in(tmp_path)).machine == packing_target(max_threads() + 1)


def test_gpu_budget_counts_the_rings_on_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(opening, "Stream", lambda device: SimpleNamespace(copy=None))
    model = own_model().placed(torch.device("cuda", 0))
    split_point = model.split_point("neck")
    settings = replace(SETTINGS, weights_residency=Residency.SYNCHRONOUS, weights_budget_bytes=1000.0)
    with pytest.raises(ConfigurationError) as caught:
        stream_backbone(model, split_point, settings, batch_size=1)
    packed = open_packed(
        network_of(model), backbone_of(graph_of(model), split_point), packed_in(tmp_path), num_threads=None
    )
    ring = plan_memory(Residency.SYNCHRONOUS, packed.block_sizes, packed.step_blocks).ring
    needed = 2 * ring.capacity + packed.kept_bytes
    assert f"needs a weights_budget_mb of {math.ceil(needed / 1e5) / 10} " in str(caught.value)


def test_each_batch_size_has_a_file_of_its_own(run: Run, tmp_path: Path) -> None:
    """Layouts depend on the batch size. Released weights are read back to pack them, and released again."""
    expected = run.feed()
    change(run, weights_residency=Residency.TWO_STAGE)
    change(run, batch_size=2)
    names = [path.name for path in (tmp_path / "split_infer_ros" / "weights").iterdir()]
    assert sorted(name.rpartition("-")[2] for name in names) == ["1.weights", "2.weights"]
    assert run.memory_share() < 0.2
    for found, wanted in zip(run.feed(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)  # other batch sizes use other kernels
