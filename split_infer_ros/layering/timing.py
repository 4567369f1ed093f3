"""What the predictor is told of a model and a disk, as seen while a half runs on streamed weights."""

from __future__ import annotations

from torch import Tensor

from split_infer_ros.layering.predictor import Machine
from split_infer_ros.layering.streamed import StreamedHalf


def time_layers(half: StreamedHalf, inputs: Tensor, passes: int) -> Machine:
    """Each layer's shortest time, and reading as quick as in the best pass: what else ran meanwhile is not counted.

    Args:
        half: that runs.
        inputs: to run it on, again and again.
        passes: how often, at least twice: the first one is not counted.
    """
    times, speeds = [], []
    for turn in range(passes):
        before = half.stats()
        half(inputs)
        after = half.stats()
        seconds = after.reading_s - before.reading_s
        if turn and half.times is not None:
            times.append(half.times)
            speeds.append((after.bytes_read - before.bytes_read) / seconds if seconds else 0.0)
    steps = tuple(map(min, zip(*(each.steps for each in times), strict=True)))
    return Machine(steps, min(each.rest for each in times), max(speeds) or 1.0)
