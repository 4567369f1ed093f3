"""Streamed weights of heads in the pipeline: results are those of resident heads, and a failure costs its batch."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from networks import network_of
from streamed_run import PICTURES, SETTINGS, Run, Scores, change, damage, own_model, packed_in, same

from split_infer_ros.errors import ConfigurationError, StreamError, WeightsError
from split_infer_ros.runtime.num_threads import max_threads
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.weight_streaming.pack import pack_model
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.settings import WeightsSettings

SPLIT_POINTS = ("input", "neck")
EVERY_RESIDENCY = (
    Residency.TWO_STAGE,
    Residency.AUTO,
    Residency.ASYNCHRONOUS,
    Residency.RESIDENT,
    Residency.SYNCHRONOUS,
)
TWO_STAGE = WeightsSettings(weights_residency=Residency.TWO_STAGE)
RESIDENT = WeightsSettings()


def feed_at_each_split_point(run: Run) -> dict[str, list[Scores]]:
    found = {}
    for split_point in SPLIT_POINTS:
        change(run, split_point=split_point)
        found[split_point] = run.feed()
    return found


def test_streamed_heads_give_the_bits_of_resident_ones(run: Run) -> None:
    expected = feed_at_each_split_point(run)
    for residency in EVERY_RESIDENCY:
        run.pipeline.head.configure(WeightsSettings(weights_residency=residency))
        found = feed_at_each_split_point(run)
        assert all(same(found[split_point], expected[split_point]) for split_point in SPLIT_POINTS), residency
        weights = run.pipeline.head.weights
        assert (weights is None) == (residency is Residency.RESIDENT)
        if weights:
            assert weights.memory_bytes > 0
            assert weights.bandwidth > 0


def test_split_point_changes_while_frames_flow(run: Run) -> None:
    expected = feed_at_each_split_point(run)
    run.pipeline.head.configure(TWO_STAGE)
    sequence = 3 * SPLIT_POINTS
    run.found.clear()
    for split_point in sequence:
        change(run, split_point=split_point)
        run.pipeline.feed(PICTURES)  # without waiting for the frames
    run.pipeline.finish()
    assert same(
        [each.scores for each in run.found], [scores for split_point in sequence for scores in expected[split_point]]
    )


def test_both_partitions_read_released_weights_from_their_files(run: Run, tmp_path: Path) -> None:
    expected = run.feed()
    state = {name: tensor.clone() for name, tensor in network_of(run.model).graph.state().items()}
    change(run, weights_residency=Residency.TWO_STAGE)
    run.pipeline.head.configure(TWO_STAGE)
    assert same(run.feed(), expected)
    assert run.memory_share() < 0.1
    again = network_of(run.model).graph.state()
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)
    files = list((tmp_path / "split_infer_ros" / "weights").iterdir())
    assert len(files) == len({max_threads(), 1})  # the backbone has all cores, the head one
    for path in files:
        path.rename(tmp_path / "away")
        with pytest.raises(WeightsError, match=path.name):
            network_of(run.model).graph.state()
        (tmp_path / "away").rename(path)
    change(run, weights_residency=Residency.RESIDENT)
    run.pipeline.head.configure(RESIDENT)
    assert same(run.feed(), expected)


def test_damaged_layer_costs_batches_until_it_is_repaired(run: Run, tmp_path: Path) -> None:
    expected = feed_at_each_split_point(run)
    run.pipeline.head.configure(TWO_STAGE)
    layer, whole = damage(packed_in(tmp_path))
    assert same(run.feed(), expected["neck"])  # the layer is the backbone's, whose own weights are in memory
    change(run, split_point="input")
    with pytest.raises(StreamError, match=f"Layer '{layer}' differs from what was written"):
        run.feed()
    counts = run.settle()
    assert counts.balanced
    assert set(counts.dropped) == {"head_error"}
    packed_in(tmp_path).write_bytes(whole)
    for _ in range(2):  # weights that were read ahead may fail once more
        try:
            found = run.feed()
        except StreamError:
            run.settle()
    assert same(found, expected["input"])


def test_resident_head_is_freed_once_its_weights_are_streamed(run: Run) -> None:
    run.feed()
    resident = weakref.ref(run.model.head(SETTINGS.split_point))
    run.pipeline.head.configure(TWO_STAGE)
    assert resident() is None


def test_refused_settings_leave_the_weights_as_they_are(run: Run, tmp_path: Path) -> None:
    expected = run.feed()
    run.pipeline.head.configure(TWO_STAGE)
    with pytest.raises(ConfigurationError, match="needs a weights_budget_mb of"):
        run.pipeline.head.configure(replace(TWO_STAGE, weights_budget_bytes=1000.0))
    assert same(run.feed(), expected)
    packed = packed_in(tmp_path)
    whole = packed.rename(tmp_path / "whole")  # the head keeps reading the open file
    packed.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(ConfigurationError, match="cannot be read back"):
        run.pipeline.head.configure(RESIDENT)
    whole.replace(packed)
    assert run.pipeline.head.weights is not None
    assert same(run.feed(), expected)


def test_weights_are_packed_before_the_first_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = Run(TWO_STAGE)
    written = packed_in(tmp_path).stat().st_mtime_ns
    with run.pipeline:
        run.feed()
        assert run.pipeline.head.weights is not None
        change(run, split_point="output")  # after which there are no weights
        run.feed()
        assert run.pipeline.head.weights is None
    assert packed_in(tmp_path).stat().st_mtime_ns == written


def test_file_for_another_number_of_threads_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, path = own_model(), tmp_path / "mine.weights"
    pack_model(network_of(model), path, num_threads=max_threads() + 1)
    with pytest.raises(ConfigurationError, match=f"was packed for another machine .*{max_threads() + 1} threads"):
        LocalPipeline(model, SETTINGS, lambda *_: None, head_weights=replace(TWO_STAGE, weights_file=str(path)))


def test_stopped_head_streams_again_after_start(run: Run) -> None:
    expected = run.feed()
    run.pipeline.head.configure(TWO_STAGE)
    run.pipeline.head.stop()
    assert run.pipeline.head.weights is None
    run.pipeline.head.start()
    assert same(run.feed(), expected)
    assert run.pipeline.head.weights is not None
