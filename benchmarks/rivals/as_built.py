"""The rival that runs a whole model as built: paper 000's baseline (§6.1)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import torch
from torch import Tensor, nn

from benchmarks.rivals.finish import Finish
from benchmarks.rivals.image_feed import Batches
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import ModelEntry


class Baseline:
    """Runs the model as built, one batch after another: pre-process, upload, run, post-process, download.

    Args:
        entry: the model's entry in the catalogue.
        module: the model as built. It is copied.
        device: the device that runs the model and decodes a detector's outputs.
        limits: the limits that decide which detections are kept.
        processor: runs the model, and nothing else, on a thread of its own. None: the calling thread runs it.
    """

    def __init__(
        self,
        entry: ModelEntry,
        module: nn.Module,
        device: torch.device,
        limits: Limits,
        processor: Executor | None = None,
    ) -> None:
        self._entry = entry
        self._module = copy.deepcopy(module).to(device).eval()
        self._device = device
        self._finish = Finish(entry, device, limits)
        self._processor = processor

    @torch.inference_mode()
    def run(self, batches: Batches, deliver: Callable[[Sequence[Detections]], None]) -> None:
        """Runs all batches. Calls ``deliver`` with the detections of each batch."""
        preprocess = self._entry.preprocess
        for pictures in batches:
            gathered = preprocess.gather(pictures, preprocess.staging(len(pictures)))
            images = torch.from_numpy(preprocess.normalise(gathered, channels_last=False))
            forward, processor = self._forward, self._processor
            outputs = forward(images) if processor is None else processor.submit(forward, images).result()
            deliver(self._finish(outputs, pictures))

    @torch.inference_mode()
    def _forward(self, images: Tensor) -> tuple[Tensor, ...]:
        outputs = self._module(images.to(self._device))
        return outputs if isinstance(outputs, tuple) else (outputs,)
