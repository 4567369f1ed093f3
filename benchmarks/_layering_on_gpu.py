"""Demand layering on a GPU: each way of reading weights, against resident ones and an upload of all for each pass."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from _layering_child import Half, images_of
from _layering_turns import Disk, passes
from torch import Tensor, nn

from split_infer_ros.layering.contents import open_contents
from split_infer_ros.layering.pack import pack_model
from split_infer_ros.layering.residency import ASYNCHRONOUS, RESIDENT, SYNCHRONOUS, TWO_STAGE
from split_infer_ros.layering.streamed import StreamedHalf
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.pipeline.streaming import stream_backbone
from split_infer_ros.runtime.streams import current_fence
from split_infer_ros.split.form import CHANNELS_LAST, Form
from split_infer_ros.split.halves import backbone_of
from split_infer_ros.split.load import load_model
from split_infer_ros.telemetry.report import AT_MOST, Claim, show

UPLOADED = "uploaded"
STREAMED = (SYNCHRONOUS, ASYNCHRONOUS, TWO_STAGE)
SHARE = 25.0  # % of its weights, that a model is to hold on the GPU
MB = 1e6

Rows = list[Mapping[str, Any]]


def measure_on_gpu(
    name: str, path: Path, device: torch.device, rounds: int, count: int
) -> tuple[Rows, dict[str, list[float]]]:
    """A row for each way, and the seconds of its passes; the ways take turns.

    Args:
        name: of the model.
        path: where its packed weights go.
        device: where it runs.
        rounds: turns of each way.
        count: passes a turn, of which the first is not counted.
    """
    model = load_model(name, "random", str(device), form=Form(CHANNELS_LAST))  # on a GPU, as any other form
    threads = None if device.type == "cuda" else torch.get_num_threads()
    pack_model(load_model(name, "random", "cpu"), path, threads)
    images = images_of(model).to(device)
    settings = StageSettings(split_point="output", weights_file=str(path))
    with torch.inference_mode():
        resident = model.backbone("output")  # it keeps its weights, which the model gives back when they are streamed
        halves: dict[str, Half] = {RESIDENT: resident, UPLOADED: uploaded(resident, device)}
        weights = {RESIDENT: _bytes(resident), UPLOADED: _bytes(resident)}
        for way in STREAMED:
            before = torch.cuda.memory_allocated(device)
            half = stream_backbone(model, model.cut("output"), replace(settings, weights_residency=way))
            assert half is not None
            halves[way], weights[way] = half, torch.cuda.memory_allocated(device) - before
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            expected = [value.clone() for value in resident(images)]
            same = {way: _same(half(images), expected) for way, half in halves.items()}
        disk = Disk(open_contents(model, backbone_of(model.graph, model.cut("output")), path, threads))
        times: dict[str, list[float]] = {way: [] for way in halves}
        speeds: dict[str, list[float]] = {way: [] for way in halves}
        for _ in range(rounds):
            for way, half in halves.items():
                times[way] += passes(_to_its_end(half, device), images, count)[1:]
                speeds[way].append(disk.read())
    compute_s, total = statistics.median(times[RESIDENT]), weights[RESIDENT]
    rows: Rows = []
    for way, half in halves.items():
        speed = statistics.median(speeds[way])
        rows.append(
            {
                "model": name,
                "device": str(device),
                "way": way,
                "delay_ms": 1e3 * statistics.median(times[way]),
                "bound_ms": 1e3 * max(compute_s, total / speed if way in STREAMED else 0.0),
                "weights_mb": total / MB,
                "gpu_mb": weights[way] / MB,
                "read_mb_s": speed / MB,
                "same": same[way],
                "note": half.note if isinstance(half, StreamedHalf) else "",
            }
        )
        show(rows[-1])
        if isinstance(half, StreamedHalf):
            half.close()
    return rows, times


def uploaded(half: nn.Module, device: torch.device) -> Half:
    """All weights come from page-locked memory at each pass's start, into a place for all of them."""
    own = copy.deepcopy(half)
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


def conclude_on_gpu(name: str, rows: Rows) -> list[Claim]:
    """The goals."""
    by_way = {row["way"]: row for row in rows}
    claims = [Claim(f"{name}: ways that give the same", sum(row["same"] for row in rows), "", len(rows))]
    for way in STREAMED:
        row = by_way[way]
        share = 100 * row["gpu_mb"] / row["weights_mb"]
        claims.append(Claim(f"{name}: {way} holds on the GPU, of its weights", share, "%", SHARE, AT_MOST))
    for way in (ASYNCHRONOUS, TWO_STAGE):
        row = by_way[way]
        reached = 100 * row["bound_ms"] / row["delay_ms"]
        claims.append(Claim(f"{name}: {way}, of its bound", reached, "%", 90.0))
    return claims


def _to_its_end(half: Half, device: torch.device) -> Half:
    """A pass that returns when the GPU has done it."""
    if device.type != "cuda":
        return half

    def run(images: Tensor) -> Sequence[Tensor]:
        found = half(images)
        current_fence(device).wait()
        return found

    return run


def _bytes(module: nn.Module) -> int:
    return sum(value.nbytes for value in (*module.parameters(), *module.buffers()))


def _same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Within 1e-3 of the largest value: kernels may sum in another order."""
    pairs = zip(found, expected, strict=True)
    return all(bool((mine - other).abs().max() <= 1e-3 * other.abs().max()) for mine, other in pairs)
