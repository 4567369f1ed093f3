"""Settings change while frames flow: no frame is lost, and each result equals that of the whole model."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import ModelEntry, Weights
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.server.auto_split import AutoSplit
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.server.split_chooser import AUTO, BATCH_SIZES, SplitChooser
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.planner import Goal
from split_infer_ros.split.profile import Profile, ProfilePoint, StageContention
from split_infer_ros.split.torch_network import TorchNetwork

SIDE, CLASSES, PICTURES, CHANGES = 16, 5, 12, 200


class Layers(nn.Module):
    """A model with blocks for many split points."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Conv2d(8 if index else 3, 8, 3, padding=1), nn.ReLU()) for index in range(6)]
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.blocks(images).mean((2, 3)))  # type: ignore[no-any-return]


def decode(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
    return [Detections(torch.zeros(CLASSES, 4), logits.sigmoid(), torch.arange(CLASSES)) for logits in outputs[0]]


ENTRY = ModelEntry(
    name="layers",
    summary="",
    build=Layers,
    weights=Weights(),
    preprocess=Preprocess(SIDE, SIDE, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
    labels=tuple(map(str, range(CLASSES))),
    default_split_point="blocks.3",
    decode=decode,
)


def refusal(change: Callable[[], None]) -> str:
    try:
        change()
    except ConfigurationError as error:
        return str(error)
    return ""


def test_many_changes_lose_no_frame_and_alter_no_result() -> None:
    """200 changes of split point, batch size or both, valid or not, under load."""
    torch.manual_seed(0)
    images = (torch.rand(PICTURES, 1, 1, 3) * torch.randint(0, 256, (PICTURES, SIDE, SIDE, 3))).to(torch.uint8)
    inputs = images.permute(0, 3, 1, 2) / 255
    module = randomise(Layers(), inputs)
    with torch.inference_mode():
        expected = module(inputs)
    expected = expected.sigmoid().numpy()  # scores lie between 0 and 1
    assert expected.std(0).min() > 0.01
    pictures = [Pixels(image, (0, 1, 2)) for image in images.numpy()]
    model = SplitModel(TorchNetwork(ENTRY, module))
    wrong: list[tuple[int, float]] = []
    split_points_seen: set[str] = set()

    def deliver(origin: Origin, detections: Detections) -> None:
        error = float(np.abs(detections.scores - expected[origin.header % PICTURES]).max())
        if error > 2e-5:  # rounding: the whole model ran unfused and with another batch size
            wrong.append((origin.header, error))

    def find(sizes: Sequence[int], may_measure: bool) -> Profile:
        if not set(sizes) <= set(BATCH_SIZES["cpu"]):
            raise ConfigurationError(f"layers was not measured at {sizes}.")
        rng = random.Random(len(sizes))
        points = [
            ProfilePoint(split_point.name, size, 1, 0.0, rng.random(), 0.0, rng.random(), 0.0)
            for size in sizes
            for split_point in model.split_points
        ]
        return Profile("layers", "cpu", tuple(points), StageContention())

    split = AutoSplit(SplitChooser("cpu", find, dwell_s=5.0), lambda line: None)
    wanted, goal = StageSettings(drop_policy=DropPolicy.BLOCK, batch_timeout_s=0.002), Goal()
    rng = random.Random(4)
    names = [*(split_point.name for split_point in model.split_points), "default", AUTO, AUTO, "nowhere", "block", ""]
    refused = 0
    with LocalPipeline(model, split.begin(wanted, goal), deliver) as pipeline:
        split.attach(pipeline.backbone.configure)
        ended = threading.Event()

        def feed() -> None:
            while not ended.is_set():
                pipeline.feed(pictures)

        feeding = threading.Thread(target=feed)
        feeding.start()
        for _ in range(CHANGES):
            before = pipeline.backbone.settings
            size = rng.choice([0, 1, 2, 3, 4, 8, 16])
            change = replace(wanted, split_point=rng.choice(names), batch_size=size, pool_slots=rng.choice([1, 4]))
            reason = refusal(lambda change=change: split.configure(change, goal))
            if reason:
                refused += 1
                assert str(size if change.split_point == AUTO else change.split_point) in reason
                assert pipeline.backbone.settings == before
            else:
                now = pipeline.backbone.settings
                assert change.split_point == AUTO or model.split_point(change.split_point).name == now.split_point
                assert now.batch_size == (change.batch_size or now.batch_size)
                split_points_seen.add(pipeline.backbone.report(time.monotonic()).split_point)
            received = pipeline.backbone.ledger.counts().received
            end = time.monotonic() + 20
            while pipeline.backbone.ledger.counts().received < received + 5:
                assert time.monotonic() < end, "no frame comes through"
                time.sleep(1e-4)
        ended.set()
        feeding.join()
        pipeline.finish()
        counts = pipeline.backbone.ledger.counts()
    assert wrong == []
    assert counts.published == counts.received > 5 * CHANGES
    assert split_points_seen == {split_point.name for split_point in model.split_points}
    assert 15 < refused < CHANGES / 2
