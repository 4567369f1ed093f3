"""What the predictor is told of a model and a disk, as seen while a partition runs on streamed weights."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from torch import Tensor

from split_infer_ros.weight_streaming.delay_model import Machine, with_latency
from split_infer_ros.weight_streaming.residency import ASYNCHRONOUS, TWO_STAGE, place
from split_infer_ros.weight_streaming.ring import RingPlan
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition


def time_model(
    make: Callable[[RingPlan], StreamedPartition],
    sizes: Sequence[int],
    uses: Sequence[int],
    inputs: Sequence[Tensor],
    passes: int,
) -> Machine:
    """Layers as they run with a ring that has room, and what a read takes besides as it is with the smallest one.

    Args:
        make: a partition with a ring of that plan, which is closed here.
        sizes, uses: of its blocks, as ``ring.circular`` has them.
        inputs: to run it on, again and again.
        passes: how often, at least twice: the first one is not counted.
    """
    partition = make(place(ASYNCHRONOUS, sizes, uses).plan)
    try:
        machine = time_layers(partition, inputs, passes)
    finally:
        partition.close()
    plan = place(TWO_STAGE, sizes, uses).plan
    partition = make(plan)
    try:
        waited = time_waits(partition, inputs, passes)
    finally:
        partition.close()
    return with_latency(machine, plan, machine.compute + waited)


def time_layers(partition: StreamedPartition, inputs: Sequence[Tensor], passes: int) -> Machine:
    """Each layer's shortest time, as what else ran meanwhile is not to count, and the median pass's reading.

    Args:
        half: that runs.
        inputs: to run it on, again and again.
        passes: how often, at least twice: the first one is not counted.
    """
    times, speeds = [], []
    for turn in range(passes):
        before = partition.stats()
        partition(*inputs)
        after = partition.stats()
        seconds = after.reading_s - before.reading_s
        if turn and partition.times is not None:
            times.append(partition.times)
            speeds.append((after.bytes_read - before.bytes_read) / seconds if seconds else 0.0)
    steps = tuple(map(min, zip(*(each.steps for each in times), strict=True)))
    return Machine(steps, min(each.rest for each in times), statistics.median(speeds) or 1.0)


def time_waits(partition: StreamedPartition, inputs: Sequence[Tensor], passes: int) -> float:
    """Seconds for which the median pass waits for weights; the first one is not counted."""
    waits = []
    for turn in range(passes):
        partition(*inputs)
        if turn and partition.times is not None:
            waits.append(partition.times.waited)
    return statistics.median(waits)
