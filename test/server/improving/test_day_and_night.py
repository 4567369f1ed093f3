"""A precision that agrees by day and not by night gives way to fp32 soon after nightfall, and says so."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("torch")
import torch
from proposed_rivals import Proposed
from tenant_server import until
from torch import Tensor, nn
from two_stages import Stages, Start

from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import ModelEntry, Weights
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.server.improving import improver, live_contest, live_frames, search
from split_infer_ros.server.improving.turns import Turns, Verdict
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_network import TorchNetwork

DAY, DUSK, NIGHT = (180, 200), (150, 180), (45, 60)  # the brightness of the frames
FINE, COARSE = 0.1, 0.3  # of 1: darker images are of the class "dark"
FRAMES = 2000  # of the night, within which the model must be back in fp32


class Light(nn.Module):
    """Maps images to the scores of the classes bright and dark, (N, 2)."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Conv2d(3, 2, 1), nn.AvgPool2d(4), nn.Flatten())
        convolution = self.parts[0]
        assert isinstance(convolution, nn.Conv2d)
        assert convolution.bias is not None
        with torch.no_grad():
            convolution.weight.zero_()[0] = 1 / 3
            convolution.bias.copy_(torch.tensor([0.0, threshold]))

    def forward(self, images: Tensor) -> Tensor:
        return self.parts(images)  # type: ignore[no-any-return]


def decode(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
    return [
        Detections(torch.tensor([[0.0, 0.0, 4.0, 4.0]]), each.max().reshape(1), each.argmax().reshape(1))
        for each in outputs[0]
    ]


def light(threshold: float) -> SplitModel:
    entry = ModelEntry(
        name="light",
        summary="",
        build=lambda: Light(threshold),
        weights=Weights(),
        preprocess=Preprocess(4, 4, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
        labels=("bright", "dark"),
        default_split_point=None,
        decode=decode,
    )
    return SplitModel(TorchNetwork(entry, Light(threshold)))


class Won(Turns):
    """The rival wins as soon as it had a turn."""

    @property
    def verdict(self) -> Verdict | None:
        return Verdict(1.5, 1.4, 1.6)


def show(stages: Stages, light: tuple[int, int], count: int) -> None:
    """Sends frames, as fast as a camera at 500 Hz, of brightness that goes up and down."""
    for index in range(count):
        low, high = light
        stages.send(low + index % (high - low))
        time.sleep(0.002)


def test_the_night_brings_fp32_back(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_frames, "SPACING_S", 0.0)
    monkeypatch.setattr(live_contest, "Turns", Won)
    monkeypatch.setattr("split_infer_ros.server.improving.turns.TURN_S", 0.01)
    monkeypatch.setattr(search, "MIN_BATCHES", 2)
    monkeypatch.setattr(improver, "RETRY_S", 0.01)
    fine, coarse = light(FINE), light(COARSE)
    stages = start(rivals=Proposed(coarse, min_agreement=0.97), model=fine)
    while not stages.said:
        show(stages, DAY, 20)
    assert stages.backbone.plan.model is coarse
    show(stages, DUSK, 500)
    assert stages.backbone.plan.model is coarse, "at dusk, both see the same"
    frames = 0
    while stages.backbone.plan.model is coarse and frames < FRAMES:
        show(stages, NIGHT, 20)
        frames += 20
    assert stages.backbone.plan.model is stages.backbone.instance.model is fine
    until(lambda: len(stages.said) == 2)
    assert stages.said[1].startswith(
        "light runs in fp32 again, not in fp32: its top-1 with fp32's detections as the truth"
    )
    stages.settle()
    assert stages.errors == []
