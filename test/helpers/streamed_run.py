"""Runs the shapes detector in a pipeline with streamed weights, and collects its detections."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from networks import graph_of

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.ledger import LedgerCounts
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.torch_network import TorchNetwork
from split_infer_ros.torch_graphs.module_state import state_of
from split_infer_ros.weight_streaming.packed_file import read_header
from split_infer_ros.weight_streaming.settings import WeightsSettings

SETTINGS = StageSettings(split_point="neck", batch_timeout_s=0.002, drop_policy=DropPolicy.BLOCK)
PICTURES = [Pixels(np.random.randint(0, 255, (48, 64, 3), np.uint8), (0, 1, 2)) for _ in range(3)]
Scores = npt.NDArray[np.float32]


def own_model() -> SplitModel:
    """Returns a shapes detector that shares its weights with no other model, so that their memory can be freed."""
    entry = load_model(ModelSpec("shapes", "default", "cpu")).entry
    return SplitModel(TorchNetwork(entry, entry.build().eval()))


class Run:
    """The shapes detector in a pipeline, and its detections.

    Args:
        head: the settings for the weights of the head; None for resident weights.

    Attributes:
        model: the model.
        found: the detections of each picture that was fed last.
        pipeline: the pipeline.
    """

    def __init__(self, head: WeightsSettings | None = None) -> None:
        self.model = own_model()
        self.found: list[Detections] = []
        self.pipeline = LocalPipeline(self.model, SETTINGS, self._deliver, limits=Limits(0.0), head_weights=head)

    def _deliver(self, origin: Origin, detections: Detections) -> None:
        self.found.append(detections)

    def feed(self) -> list[Scores]:
        self.found.clear()
        self.pipeline.feed(PICTURES)
        self.pipeline.finish()
        assert all(len(each.scores) for each in self.found), "without detections, all runs would be equal"
        return [each.scores for each in self.found]

    def settle(self) -> LedgerCounts:
        """Waits until no frame is in flight after an error, and clears the errors. Returns the counts of frames."""
        while self.pipeline.backbone.ledger.counts().in_flight:
            time.sleep(1e-3)
        self.pipeline.errors.clear()
        return self.pipeline.backbone.ledger.counts()

    def memory_share(self) -> float:
        """Returns the share of the model's own weights that is in memory, from 0 to 1. The rest was released."""
        state = state_of(graph_of(self.model)).values()
        return sum(tensor.untyped_storage().nbytes() for tensor in state) / sum(tensor.nbytes for tensor in state)

    def feed_often(self, times: int) -> None:
        for _ in range(times):
            self.feed()


def change(run: Run, **changes: object) -> None:
    stage = run.pipeline.backbone
    stage.configure(replace(stage.settings, **changes))  # type: ignore[arg-type]


def same(found: list[Scores], expected: list[Scores]) -> bool:
    """Returns whether scores are equal bit for bit.

    They must be so at any split point: no layer is tiled, so each layer computes as with resident weights.
    """
    return len(found) == len(expected) and all(map(np.array_equal, found, expected))


def packed_in(folder: Path) -> Path:
    (path,) = (folder / "split_infer_ros" / "weights").iterdir()
    return path


def damage(path: Path) -> tuple[str, bytes]:
    """Flips a bit of the first layer in a packed file. Returns the layer's name, and the bytes of the file before."""
    whole, first = path.read_bytes(), read_header(path).pieces[0]
    with path.open("r+b") as file:
        file.seek(first.offset)
        file.write(bytes([whole[first.offset] ^ 64]))
    return first.layer, whole
