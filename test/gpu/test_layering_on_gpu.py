"""Streamed weights on a real GPU: what resident ones give, by all ways that this GPU has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.pipeline.streaming import stream_backbone
from split_infer_ros.split.load import load_model


@pytest.mark.parametrize("residency", ["synchronous", "asynchronous", "two_stage"])
@pytest.mark.parametrize("name", ["shapes", "resnet18"])
def test_streamed_weights_give_what_resident_ones_give(
    name: str, residency: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    torch.backends.cudnn.deterministic = True
    model = load_model(name, "none", "cuda:0")
    images = torch.rand(1, *model.entry.image_shape, device="cuda:0").contiguous(memory_format=torch.channels_last)
    settings = replace(StageSettings(split_point="default"), weights_residency=residency)
    with torch.inference_mode():
        expected = [value.clone() for value in model.backbone("default")(images)]
        half = stream_backbone(model, model.cut("default"), settings)
        assert half is not None
        for _ in range(20):
            torch.testing.assert_close(list(half(images)), expected, rtol=1e-4, atol=1e-4)
    assert half.stats().bytes_read > 0
    half.close()
