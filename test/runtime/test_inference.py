"""The context in which torch keeps no gradients, with torch and without."""

from __future__ import annotations

import sys

import pytest
import torch

from split_infer_ros.runtime.inference import inference_mode


def test_torch_is_in_inference_mode_inside() -> None:
    with inference_mode():
        assert torch.zeros(1).is_inference()
    assert not torch.zeros(1).is_inference()


def test_without_torch_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    with inference_mode():
        assert "torch" not in sys.modules
