"""Turns a whole model's outputs into detections, for rivals that do not split it. Chooses which detections all keep."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.candidates import SuppressOverlaps, suppress
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.split.graph import symbolic_trace

TOP_1 = Limits(score_threshold=0.0, max_detections=1)
CANDIDATES_PER_IMAGE = 400  # how many candidates a detector's threshold leaves


class Finish:
    """Turns the outputs of a batch into detections on the host, in pixels of each picture, as the head's stage does.

    Args:
        entry: the model's entry in the catalogue. It says how outputs become detections.
        device: the device on which the outputs lie.
        limits: the limits that decide which detections are kept.

    Attributes:
        on_device: whether outputs are decoded on ``device``. If not, they are decoded on the CPU.
    """

    def __init__(self, entry: ModelEntry, device: torch.device, limits: Limits) -> None:
        self._entry, self._limits = entry, limits
        self._decode = entry.detections_of
        self.on_device = isinstance(entry.decode, SuppressOverlaps)
        if isinstance(entry.decode, SuppressOverlaps):
            function = entry.decode.candidates
            candidates = symbolic_trace(lambda outputs: function(outputs)).to(device)  # moves its anchors too
            self._decode = lambda outputs, limits: suppress(candidates(outputs), limits)

    def __call__(self, outputs: tuple[Tensor, ...], pictures: Sequence[Pixels]) -> list[Detections]:
        """Returns the detections of each picture.

        A detector's outputs are decoded on the device where they lie, a classifier's outputs on the CPU.
        """
        given = outputs if self.on_device else tuple(output.cpu() for output in outputs)
        results = []
        for found, picture in zip(self._decode(given, self._limits), pictures, strict=True):
            boxes = self._entry.preprocess.to_source(found.boxes, picture.height, picture.width)
            results.append(Detections(boxes, found.scores, found.labels))
        return results


@torch.inference_mode()
def limits_for(entry: ModelEntry, module: nn.Module, images: Tensor) -> Limits:
    """Returns limits that keep a classifier's best class, or about ``CANDIDATES_PER_IMAGE`` candidates of a detector.

    Args:
        entry: the model's entry in the catalogue.
        module: the model.
        images: a batch of inputs, (N, C, H, W). A detector's score threshold is chosen from its scores in them.
    """
    if not isinstance(entry.decode, SuppressOverlaps):
        return TOP_1
    scores = entry.decode.candidates(module(images)).scores.flatten(1)
    return Limits(float(scores.topk(CANDIDATES_PER_IMAGE, dim=1).values[:, -1].median()))
