"""Compares each streaming residency on a GPU with resident weights and with an upload of all weights in each pass."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import exact, ratio
from benchmarks.common.turns import Contest, take_turns
from benchmarks.demand_layering.child import (
    ASYNCHRONOUS,
    AUTO,
    RESIDENT,
    SYNCHRONOUS,
    TWO_STAGE,
    Partition,
    images_of,
    open_whole,
)
from benchmarks.demand_layering.facts import same
from benchmarks.demand_layering.turns import READ_B_S, Disk, ResidencyTurns
from split_infer_ros.engines.execution_config import Convolutions, ExecutionConfig
from split_infer_ros.runtime.num_threads import max_threads
from split_infer_ros.runtime.streams import current_fence
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.weight_streaming.pack import pack_model
from split_infer_ros.weight_streaming.packed_weights import streamable
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition
from split_infer_ros.weight_streaming.streaming import stream_backbone

UPLOADED = "uploaded"
PIPELINES = (SYNCHRONOUS, ASYNCHRONOUS, TWO_STAGE)
STREAMED = (*PIPELINES, AUTO)
MAX_SHARE = 25.0  # %; the most that a model may hold on the GPU, as a share of one copy of its weights
PASSES_BEFORE = 1  # passes of each residency in a turn that do not count
MB = 1e6

Rows = list[Mapping[str, Any]]


class StreamingContestOnGpu:
    """Lets a model's residencies on a GPU take turns. ``open`` creates a contest.

    Leaving the context closes the partitions.

    Args:
        name: the model's name.
        device: the GPU.
        partitions: the partitions, by residency.
        gpu_bytes: the bytes of memory for weights on the GPU, by residency.
        is_same: whether the results agree with those of resident weights within 1e-3 of the largest value, by
            residency.
        turns: runs the turns of all residencies.
        stack: closes the partitions.

    Attributes:
        contest: the contest of the delays.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        *,
        partitions: Mapping[str, Partition],
        gpu_bytes: Mapping[str, int],
        is_same: Mapping[str, bool],
        turns: ResidencyTurns,
        stack: ExitStack,
    ) -> None:
        self._name = name
        self._device = device
        self._partitions = partitions
        self._gpu_bytes = gpu_bytes
        self._is_same = is_same
        self._turns = turns
        self._stack = stack
        self.contest = Contest(name, turns.turn, lambda contest: self._bound_claims())

    @classmethod
    def open(cls, name: str, path: Path, device: torch.device) -> StreamingContestOnGpu:
        """Packs a model and opens it in all residencies.

        Args:
            name: the model's name.
            path: the file to which its packed weights are written.
            device: the GPU.
        """
        config = ExecutionConfig(Convolutions.CHANNELS_LAST)  # a GPU uses channels last for other configs as well
        model = load_model(ModelSpec(name, weights="random", device=str(device), execution_config=config))
        num_threads = None if device.type == "cuda" else max_threads()  # as streamed partitions do
        pack_model(streamable(load_model(ModelSpec(name, "random", "cpu"))), path, num_threads=num_threads)
        images = images_of(model).to(device)
        with ExitStack() as stack, torch.inference_mode():
            resident = model.backbone("output")  # this keeps its weights when the streamed model releases its own
            partitions: dict[str, Partition] = {RESIDENT: resident, UPLOADED: uploaded(resident, device)}
            gpu_bytes = {RESIDENT: _bytes(resident), UPLOADED: _bytes(resident)}
            for residency in STREAMED:
                allocated = torch.cuda.memory_allocated(device)
                partition = _stream(model, path, residency)
                stack.callback(partition.close)
                partitions[residency] = partition
                gpu_bytes[residency] = torch.cuda.memory_allocated(device) - allocated
            with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
                expected = [value.clone() for value in resident(images)]
                is_same = {residency: same(run(images), expected, bits=False) for residency, run in partitions.items()}
            timed = {residency: _to_its_end(run, device) for residency, run in partitions.items()}
            turns = ResidencyTurns(
                timed,
                passes_before=dict.fromkeys(timed, PASSES_BEFORE),
                images=images,
                disk=Disk(open_whole(model, path, num_threads=num_threads)),
            )
            return cls(
                name,
                device,
                partitions=partitions,
                gpu_bytes=gpu_bytes,
                is_same=is_same,
                turns=turns,
                stack=stack.pop_all(),
            )

    def __enter__(self) -> StreamingContestOnGpu:
        return self

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    def take_turns(self, seconds: float) -> None:
        """Runs turns of all residencies for ``seconds`` seconds."""
        with torch.inference_mode():
            take_turns([self.contest], seconds)

    def claims(self) -> list[Claim]:
        """Returns all claims about the model."""
        name, total = self._name, self._gpu_bytes[RESIDENT]
        claims = [Claim(f"{name}: ways that give the same", exact(sum(self._is_same.values())), "", len(self._is_same))]
        for residency in PIPELINES:
            share = exact(100 * self._gpu_bytes[residency] / total)
            claim = f"{name}: {residency} holds on the GPU, of one copy of its weights"
            claims.append(Claim(claim, share, "%", MAX_SHARE, Direction.AT_MOST))
        return claims + self._bound_claims()

    def samples_ms(self) -> dict[str, list[float]]:
        """Returns the delay of each turn in milliseconds, by residency."""
        return {name: [round(1e3 * delay_s, 5) for delay_s in self.contest.figures[name]] for name in self._partitions}

    def rows(self) -> Rows:
        """Returns a row for each residency."""
        return [self._row(residency, samples) for residency, samples in self.samples_ms().items()]

    def _row(self, residency: str, samples_ms: Sequence[float]) -> Mapping[str, Any]:
        partition = self._partitions[residency]
        return {
            "model": self._name,
            "device": str(self._device),
            "way": residency,
            "delay_ms": statistics.median(samples_ms),
            "bound_ms": 1e3 * statistics.median(self._bounds(residency)),
            "weights_mb": self._gpu_bytes[RESIDENT] / MB,
            "gpu_mb": self._gpu_bytes[residency] / MB,
            "memory_mb": self._held_bytes(partition) / MB,
            "read_mb_s": statistics.median(self.contest.figures[READ_B_S]) / MB,
            "same": self._is_same[residency],
            "note": partition.note if isinstance(partition, StreamedPartition) else "",
            "samples_ms": samples_ms,
            **self._turns.usage.row(residency),
        }

    def _held_bytes(self, partition: Partition) -> int:
        """Returns the memory of weights on host and GPU."""
        return partition.weight_bytes if isinstance(partition, StreamedPartition) else self._gpu_bytes[RESIDENT]

    def _bound_claims(self) -> list[Claim]:
        figures, turn_s = self.contest.figures, self.contest.turn_s
        return [
            Claim(
                f"{self._name}: {residency}, of its bound",
                ratio(self._bounds(residency), figures[residency]).times(100),
                "%",
                90.0,
                turn_s=turn_s,
            )
            for residency in (ASYNCHRONOUS, TWO_STAGE)
        ]

    def _bounds(self, residency: str) -> NDArray[np.float64]:
        """Returns each turn's bound in seconds: the longer of computing and, if weights are read, reading them all."""
        compute_s, bandwidth = (np.asarray(self.contest.figures[name]) for name in (RESIDENT, READ_B_S))
        return np.maximum(compute_s, self._gpu_bytes[RESIDENT] / bandwidth) if residency in STREAMED else compute_s


def _stream(model: SplitModel, path: Path, residency: str) -> StreamedPartition:
    settings = StageSettings(split_point="output", weights_file=str(path), weights_residency=Residency(residency))
    partition = stream_backbone(model, model.split_point("output"), settings, batch_size=1)
    assert partition is not None
    return partition


def uploaded(partition: nn.Module, device: torch.device) -> Partition:
    """Returns a copy of a partition that copies all its weights to the device at the start of each pass.

    On a GPU, the weights come from page-locked memory of the host.
    """
    own = copy.deepcopy(partition)
    on_device = [*own.parameters(), *own.buffers()]
    on_host = [value.cpu() for value in on_device]
    if device.type == "cuda":
        on_host = [value.pin_memory() for value in on_host]

    def run(images: Tensor) -> Sequence[Tensor]:
        for target, value in zip(on_device, on_host, strict=True):
            target.copy_(value, non_blocking=True)
        results: Sequence[Tensor] = own(images)
        return results

    return run


def _to_its_end(partition: Partition, device: torch.device) -> Partition:
    """Returns the partition as a function that returns only when the GPU has finished the pass."""
    if device.type != "cuda":
        return partition

    def run(images: Tensor) -> Sequence[Tensor]:
        results = partition(images)
        current_fence(device).wait()
        return results

    return run


def _bytes(module: nn.Module) -> int:
    return sum(value.nbytes for value in (*module.parameters(), *module.buffers()))
