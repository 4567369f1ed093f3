"""Streamed weights on a real GPU give the results of resident ones, also while frames flow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gpu_frames import SETTINGS, check_scores, picture, running

from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.pipeline.streaming import stream_backbone
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.ring_memory import CopiedRingMemory, MappedRingMemory


@pytest.mark.parametrize("residency", [Residency.SYNCHRONOUS, Residency.ASYNCHRONOUS, Residency.TWO_STAGE])
@pytest.mark.parametrize("name", ["shapes", "resnet18"])
def test_streamed_weights_give_the_results_of_resident_ones(
    name: str, residency: Residency, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    model = load_model(ModelSpec(name, "none", "cuda:0"))
    images = torch.rand(1, *model.entry.image_shape, device="cuda:0").contiguous(memory_format=torch.channels_last)
    settings = replace(StageSettings(split_point="default"), weights_residency=residency)
    with torch.inference_mode():
        expected = [value.clone() for value in model.backbone("default")(images)]
        partition = stream_backbone(model, model.split_point("default"), settings)
        assert partition is not None
        for _ in range(20):
            torch.testing.assert_close(list(partition(images)), expected, rtol=1e-4, atol=1e-4)
    assert partition.stats().bytes_read > 0
    if partition.note == "":  # else the disk cannot write to memory that the GPU reads
        assert isinstance(
            partition.ring_memory, MappedRingMemory if residency is Residency.TWO_STAGE else CopiedRingMemory
        )
    partition.close()


def test_residency_changes_while_frames_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    resident, streamed = SETTINGS, replace(SETTINGS, weights_residency=Residency.ASYNCHRONOUS)
    with running(resident) as (pipeline, scores):
        for turn, settings in enumerate((resident, streamed, resident, streamed)):
            pipeline.backbone.configure(settings)
            pipeline.feed(picture(number) for number in range(8 * turn, 8 * turn + 8))
            assert (pipeline.backbone.report(0.0).weights is not None) == (settings is streamed)
        pipeline.finish()
    assert sorted(scores) == list(range(32))
    check_scores(scores)
