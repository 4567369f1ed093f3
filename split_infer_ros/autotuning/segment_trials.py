"""Times the segments of a network, and the conversions between the memory formats of their features."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from split_infer_ros.autotuning.lane_run import WARM_UP
from split_infer_ros.autotuning.memory_formats import MemoryFormat, format_of
from split_infer_ros.autotuning.spaces import CONVERSION, LAYOUTS, WORK
from split_infer_ros.engines.execution_config import Convolutions
from split_infer_ros.measurements.steady import measure_steadily
from split_infer_ros.measurements.turns import MAX_SAMPLES
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.runtime.timing import Lap, Stopwatch
from split_infer_ros.split.model import SplitModel

SEGMENT_S = 0.01  # a sample of segments takes about this long
FORMATS = {MemoryFormat.CONTIGUOUS: torch.contiguous_format, MemoryFormat.CHANNELS_LAST: torch.channels_last}


def time_segments(model: SplitModel, images: Tensor, convolutions: Convolutions, end: float) -> dict[str, Any]:
    """Times each segment of a network with one kind of convolutions.

    A segment's inputs have the memory format of that kind.

    Args:
        model: the model with that kind of convolutions.
        images: a batch in the model's dtype, on its device.
        convolutions: the kind of convolutions.
        end: an uncertain measurement is not repeated after this time of ``time.monotonic``.

    Returns:
        Three lists with an entry for each segment. ``work`` has the times of the segment itself. ``conversion`` has the
        times of converting its inputs from the other memory format to that of ``convolutions``. An entry of these two
        lists has ``costs``, in seconds, and whether they are ``uncertain``. ``layouts`` has the memory format of the
        segment's results. ``costs`` is empty.
    """
    pieces, _ = model.segments()
    own = format_of(convolutions)
    other = next(each for each in FORMATS if each is not own)
    tensors: tuple[Tensor, ...] = (images,)
    work, conversion, formats = [], [], []
    stream, watch = Stream(model.device), Stopwatch(model.device)

    def measured(run: Callable[[], object]) -> dict[str, Any]:
        for _ in range(WARM_UP - 1):
            run()
        return measure_steadily(lambda: _samples(watch, run), lambda: time.monotonic() < end).as_json()

    with torch.inference_mode(), stream.work("trial"):
        for piece in pieces:
            inputs, other_inputs = in_format(tensors, own), in_format(tensors, other)
            conversion.append(measured(functools.partial(in_format, other_inputs, own)))
            work.append(measured(functools.partial(piece, *inputs)))
            tensors = piece(*inputs)
            formats.append(found_format(tensors).value)
    return {"costs": [], WORK: work, CONVERSION: conversion, LAYOUTS: formats}


def in_format(tensors: tuple[Tensor, ...], memory_format: MemoryFormat) -> tuple[Tensor, ...]:
    """Returns the tensors in a memory format. Tensors without four dimensions stay as they are."""
    torch_format = FORMATS[memory_format]
    return tuple(tensor.contiguous(memory_format=torch_format) if tensor.dim() == 4 else tensor for tensor in tensors)


def found_format(tensors: tuple[Tensor, ...]) -> MemoryFormat:
    """Returns the memory format of the tensors with four dimensions.

    It is ``ANY`` if all of them have both formats, or if there are none; ``MIXED`` if they have no format in common.
    """
    maps = [tensor for tensor in tensors if tensor.dim() == 4]
    found = [
        kind
        for kind, torch_format in FORMATS.items()
        if all(each.is_contiguous(memory_format=torch_format) for each in maps)
    ]
    if len(found) == len(FORMATS):
        return MemoryFormat.ANY
    return found[0] if found else MemoryFormat.MIXED


def _samples(watch: Stopwatch, run: Callable[[], object]) -> list[float]:
    """Returns the seconds of each of several calls in a row. Together the calls take about ``SEGMENT_S``."""
    count = max(1, min(MAX_SAMPLES, round(SEGMENT_S / max(watch.time(run), 1e-9))))

    def repeat(lap: Lap) -> None:
        for _ in range(count):
            run()
            lap()

    return watch.laps(repeat)[1]
