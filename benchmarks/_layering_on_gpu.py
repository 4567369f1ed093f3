"""Demand layering on a GPU: each way of reading weights, against resident ones and an upload of all for each pass."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _layering_child import Half, images_of
from _layering_turns import READ_B_S, Disk, Residencies
from numpy.typing import NDArray
from torch import Tensor, nn

from split_infer_ros.engines.execution_config import Convolutions, ExecutionConfig
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.pipeline.streaming import stream_backbone
from split_infer_ros.runtime.streams import current_fence
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.partitions import backbone_of
from split_infer_ros.telemetry.claim import Claim, Direction
from split_infer_ros.telemetry.estimate import exact, ratio
from split_infer_ros.telemetry.turns import Contest, take_turns
from split_infer_ros.weight_streaming.pack import pack_model
from split_infer_ros.weight_streaming.partition_weights import open_contents
from split_infer_ros.weight_streaming.residency import ASYNCHRONOUS, RESIDENT, SYNCHRONOUS, TWO_STAGE
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition

UPLOADED = "uploaded"
STREAMED = (SYNCHRONOUS, ASYNCHRONOUS, TWO_STAGE)
SHARE = 25.0  # % of one copy of its weights, that a model is to hold on the GPU
BEFORE = 1  # passes of each way in a turn that do not count
MB = 1e6

Rows = list[Mapping[str, Any]]


class LayeredOnGpu:
    """A model's weights in each way, which take turns. As a context it ends what still reads.

    Args:
        name: of the model.
        path: where its packed weights go.
        device: where it runs.
    """

    def __init__(self, name: str, path: Path, device: torch.device) -> None:
        self._name, self._device, self._stack = name, device, ExitStack()
        model = load_model(
            ModelSpec(
                name, weights="random", device=str(device), execution_config=ExecutionConfig(Convolutions.CHANNELS_LAST)
            )
        )  # on a GPU, as any other form
        threads = None if device.type == "cuda" else torch.get_num_threads()
        pack_model(load_model(ModelSpec(name, "random", "cpu")), path, threads)
        images = images_of(model).to(device)
        settings = StageSettings(split_point="output", weights_file=str(path))
        with torch.inference_mode():
            resident = model.backbone("output")  # it keeps its weights, which the model gives back when streamed
            self._partitions: dict[str, Half] = {RESIDENT: resident, UPLOADED: uploaded(resident, device)}
            self._bytes = {RESIDENT: _bytes(resident), UPLOADED: _bytes(resident)}
            for way in STREAMED:
                before = torch.cuda.memory_allocated(device)
                partition = stream_backbone(
                    model, model.split_point("output"), replace(settings, weights_residency=way)
                )
                assert partition is not None
                self._stack.callback(partition.close)
                self._partitions[way], self._bytes[way] = partition, torch.cuda.memory_allocated(device) - before
            with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
                expected = [value.clone() for value in resident(images)]
                self._same = {way: _same(partition(images), expected) for way, partition in self._partitions.items()}
            disk = Disk(open_contents(model, backbone_of(model.graph, model.split_point("output")), path, threads))
        timed = {way: _to_its_end(partition, device) for way, partition in self._partitions.items()}
        self._turns = Residencies(timed, dict.fromkeys(timed, BEFORE), images, disk)
        self.contest = Contest(name, self._turns.turn, lambda contest: self._of_bounds())

    def __enter__(self) -> LayeredOnGpu:
        return self

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    def take_turns(self, seconds: float) -> None:
        """Have the ways take turns for so long."""
        with torch.inference_mode():
            take_turns([self.contest], seconds)

    def claims(self) -> list[Claim]:
        """All that is claimed of the model."""
        name, total = self._name, self._bytes[RESIDENT]
        claims = [Claim(f"{name}: ways that give the same", exact(sum(self._same.values())), "", len(self._same))]
        for way in STREAMED:
            share = exact(100 * self._bytes[way] / total)
            claim = f"{name}: {way} holds on the GPU, of one copy of its weights"
            claims.append(Claim(claim, share, "%", SHARE, Direction.AT_MOST))
        return claims + self._of_bounds()

    def samples_ms(self) -> dict[str, list[float]]:
        """Each turn's delay, by way."""
        return {way: [round(1e3 * each, 5) for each in self.contest.figures[way]] for way in self._partitions}

    def rows(self) -> Rows:
        """A row for each way."""
        return [
            {
                "model": self._name,
                "device": str(self._device),
                "way": way,
                "delay_ms": statistics.median(samples),
                "bound_ms": 1e3 * statistics.median(self._bounds(way)),
                "weights_mb": self._bytes[RESIDENT] / MB,
                "gpu_mb": self._bytes[way] / MB,
                "read_mb_s": statistics.median(self.contest.figures[READ_B_S]) / MB,
                "same": self._same[way],
                "note": partition.note if isinstance(partition, StreamedPartition) else "",
                "samples_ms": samples,
                **self._turns.usage.row(way),
            }
            for way, samples in self.samples_ms().items()
            for partition in [self._partitions[way]]
        ]

    def _of_bounds(self) -> list[Claim]:
        return [
            Claim(
                f"{self._name}: {way}, of its bound",
                ratio(self._bounds(way), self.contest.figures[way]).times(100),
                *("%", 90.0),
                turn_s=self.contest.turn_s,
            )
            for way in (ASYNCHRONOUS, TWO_STAGE)
        ]

    def _bounds(self, way: str) -> NDArray[np.float64]:
        """In each turn the longer of computing and, if the way reads, of reading all weights; seconds."""
        compute, bandwidth = (np.asarray(self.contest.figures[name]) for name in (RESIDENT, READ_B_S))
        return np.maximum(compute, self._bytes[RESIDENT] / bandwidth) if way in STREAMED else compute


def uploaded(partition: nn.Module, device: torch.device) -> Half:
    """All weights come from page-locked memory at each pass's start, into a place for all of them."""
    own = copy.deepcopy(partition)
    there = [*own.parameters(), *own.buffers()]
    here = [value.cpu() for value in there]
    if device.type == "cuda":
        here = [value.pin_memory() for value in here]

    def run(images: Tensor) -> Sequence[Tensor]:
        for place, value in zip(there, here, strict=True):
            place.copy_(value, non_blocking=True)
        found: Sequence[Tensor] = own(images)
        return found

    return run


def _to_its_end(partition: Half, device: torch.device) -> Half:
    """A pass that returns when the GPU has done it."""
    if device.type != "cuda":
        return partition

    def run(images: Tensor) -> Sequence[Tensor]:
        found = partition(images)
        current_fence(device).wait()
        return found

    return run


def _bytes(module: nn.Module) -> int:
    return sum(value.nbytes for value in (*module.parameters(), *module.buffers()))


def _same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Within 1e-3 of the largest value: kernels may sum in another order."""
    pairs = zip(found, expected, strict=True)
    return all(bool((mine - other).abs().max() <= 1e-3 * other.abs().max()) for mine, other in pairs)
