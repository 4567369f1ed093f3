"""Contests of hand-overs of features from a producer to a consumer: the slot pool ("ring") against queues.

Producer and consumer are in one process or in two.
"""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.claim import Claim
from benchmarks.common.estimate import minimum, ratio
from benchmarks.common.report import Panel
from benchmarks.common.rows import in_us, measured
from benchmarks.common.short_calls import Call, ShortCalls
from benchmarks.common.turns import Contest
from benchmarks.common.usage import MB, forget_peak, peak_bytes
from benchmarks.memory_policies.ring_cost import (
    ALONE,
    FRESH,
    PROCESS_QUEUE,
    REUSED,
    RING,
    SLOTS,
    by_process_queue,
    by_queue,
    by_ring,
    by_shared_ring,
    consume,
    from_the_system,
    layout,
    write,
)
from split_infer_ros.buffers.pool import SlotPool
from split_infer_ros.buffers.shared_pool import SharedSlotPool

GOALS = {FRESH: 2.0, REUSED: 2.0, PROCESS_QUEUE: 10.0}  # at least how many times the ring's cost
TURN_S = 0.05  # with shorter turns there would be so many that their intervals take seconds
IN_PROCESS, ACROSS = "in process", "across processes"


class HandOvers:
    """Times hand-overs of features of one size. The rivals alternate from one hand-over to the next.

    Args:
        place: IN_PROCESS or ACROSS.
        size: the size of the features, in bytes.
        rivals: for each rival, a function that makes one hand-over.
        consumer: the process id of the consumer; None if it is in this process.
    """

    def __init__(self, place: str, size: int, rivals: Mapping[str, Call], consumer: int | None = None) -> None:
        self.place = place
        self.size = size
        self._rivals = rivals
        self._consumer = consumer
        self._calls = ShortCalls(rivals, pass_s=0.0, turn_s=TURN_S)
        name = f"hand-over {place}, {size / MB:.1f} MB"
        self.contest = Contest(name, self._calls, lambda _: ring_claims([self]))

    @property
    def rivals(self) -> Sequence[str]:
        """The names of the rivals."""
        return list(self._rivals)

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each rival, with microseconds per hand-over."""
        what = {"what": f"hand-over {self.place}", "bytes": self.size}
        return [
            {**what, "rival": name, **measured(us=in_us(found)), **self._calls.usage.row(name), **self._other(name)}
            for name, found in self.contest.figures.items()
        ]

    def panel(self) -> Panel:
        """Returns a panel with the microseconds of each turn, by rival."""
        samples = {name: [1e6 * value for value in found] for name, found in self.contest.figures.items()}
        return Panel(self.contest.name, "us", samples)

    def _other(self, name: str) -> dict[str, float]:
        """Returns the peak memory of the other process during one more hand-over."""
        if self._consumer is None:
            return {}
        forget_peak(self._consumer)
        self._rivals[name]()
        return {"consumer_peak_mb": peak_bytes(self._consumer) / MB}


def ring_claims(contests: Sequence[HandOvers]) -> list[Claim]:
    """Returns a claim for each queue: how many times cheaper the ring is, at the size where it gains least.

    Args:
        contests: the contests of all sizes at one place.
    """
    turn_s = sum(each.contest.turn_s for each in contests)
    return [
        Claim(
            f"ring {contests[0].place}, times cheaper than {rival}, least",
            minimum([ratio(each.contest.figures[rival], each.contest.figures[RING]) for each in contests]),
            "x",
            GOALS[rival],
            turn_s=turn_s,
        )
        for rival in contests[0].rivals
        if rival in GOALS
    ]


def in_process(sizes: Sequence[int]) -> list[HandOvers]:
    """Returns a contest for each size, within one thread: producer and consumer run one after the other."""
    return [HandOvers(IN_PROCESS, size, _rivals_in_process(size)) for size in sizes]


def _rivals_in_process(size: int) -> dict[str, Call]:
    pool = SlotPool.allocate(layout(size), SLOTS)
    waiting: queue.Queue[Tensor] = queue.Queue()
    return {
        RING: lambda: by_ring(pool, write),
        ALONE: lambda: by_ring(pool, lambda _: None),
        FRESH: lambda: by_queue(waiting, from_the_system(size)),
        REUSED: lambda: by_queue(waiting, torch.empty(size, dtype=torch.uint8)),
    }


@contextmanager
def across_processes(sizes: Sequence[int]) -> Iterator[list[HandOvers]]:
    """Yields a contest for each size, with the consumer in another process. The process ends with this context."""
    context = multiprocessing.get_context("spawn")
    tensors: Any = context.Queue()
    pools = [SharedSlotPool.allocate(layout(size), SLOTS) for size in sizes]
    ours, theirs = context.Pipe()
    names = {size: pool.segment for size, pool in zip(sizes, pools, strict=True)}
    child = context.Process(target=consume, args=(theirs, tensors, names), daemon=True)
    child.start()
    theirs.close()
    try:
        ours.recv_bytes()  # the process is ready
        yield [
            HandOvers(
                ACROSS,
                size,
                {
                    RING: partial(by_shared_ring, pool, ours, index),
                    PROCESS_QUEUE: partial(by_process_queue, tensors, ours, size),
                },
                child.pid,
            )
            for index, (size, pool) in enumerate(zip(sizes, pools, strict=True))
        ]
    finally:
        ours.close()  # this ends the process
        tensors.close()
        child.join(10.0)
        if child.is_alive():
            child.kill()
        for pool in pools:
            pool.close()
