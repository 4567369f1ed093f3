#!/usr/bin/env python3
"""Compiles every schedule of the convolutions' templates, without a GPU, and writes what the compiler says.

    scripts/sweep_schedules.py [--operators pointwise] [--targets 90] [--precisions tf32 fp16] [--minutes 25]

It adds to docs/results/triton_pointwise.csv and triton_depthwise.csv what is not in them. So it can be stopped at
any time and called again. Whatever it has done by then is an even sample of the whole space. The formulas of
split_infer_ros/vision_ops/launchable.py were made from these tables, and a test holds them against the tables.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import math
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "test")]

from split_infer_ros.search.space import Config  # noqa: E402
from split_infer_ros.vision_ops.schedules import DEPTHWISE, POINTWISE, SPACES  # noqa: E402

LIMIT_S = 20.0  # of a compilation, in seconds of a processor
WAIT_S = 3 * LIMIT_S  # for it on a busy machine
FOUND = ("compile_s", "shared_bytes", "registers", "spilled_bytes")
PRECISIONS = {POINTWISE: ("tf32", "ieee", "fp16"), DEPTHWISE: ("fp32", "fp16")}
KERNELS = {POINTWISE: (1,), DEPTHWISE: (3, 5)}
IMAGES, CHANNELS, SIDE = 16, 64, 28  # multiples of 16, with which the compiler can do the most

Job = dict[str, object]


def columns(operator: str) -> list[str]:
    """Of a table: what was compiled, the schedule, and what the compiler says."""
    return ["target", "precision", "kernel", *SPACES[operator].knobs, *FOUND]


def table_of(operator: str) -> Path:
    """Where the results of an operator are."""
    return ROOT / "docs" / "results" / f"triton_{operator}.csv"


def jobs(operator: str, targets: list[int], precisions: list[str]) -> list[Job]:
    """What is to be compiled, in an order whose every beginning is an even sample of the whole."""
    knobs = SPACES[operator].knobs
    kinds = [kind for kind in PRECISIONS[operator] if kind in precisions]
    found: list[Job] = [
        {"target": target, "precision": kind, "kernel": kernel, **dict(zip(knobs, values, strict=True))}
        for values in itertools.product(*knobs.values())
        for target, kind, kernel in itertools.product(targets, kinds, KERNELS[operator])
    ]
    count = len(found)
    step = next(step for step in range(round(0.618 * count) or 1, count + 2) if math.gcd(step, count) == 1)
    return [found[place * step % count] for place in range(count)]


def compile_one(operator: str, job: Mapping[str, object]) -> dict[str, object]:
    """Seconds of a processor that it takes to compile, and what the compiler says."""
    import torch
    from offline_triton import compile_launches

    from split_infer_ros.vision_ops.kernels import convolution

    dtype = torch.float16 if job["precision"] == "fp16" else torch.float32
    schedule: Config = {name: job[name] for name in SPACES[operator].knobs}  # type: ignore[misc]

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    maps, bias, kernel = empty(IMAGES, CHANNELS, SIDE, SIDE), empty(CHANNELS), int(str(job["kernel"]))

    def launch() -> None:
        if operator == POINTWISE:
            weights = empty(CHANNELS, CHANNELS)
            convolution.pointwise(maps, weights, bias, 0.0, 6.0, job["precision"] == "tf32", **schedule)  # type: ignore[arg-type]
        else:
            weights = empty(kernel * kernel, CHANNELS)
            convolution.depthwise(maps, weights, bias, 0.0, 6.0, kernel, 1, kernel // 2, **schedule)  # type: ignore[arg-type]

    begin = used_s()
    (found,) = compile_launches(launch, int(str(job["target"])))
    told = (round(used_s() - begin, 2), found.shared_bytes, found.registers, found.spilled_bytes)
    return dict(zip(FOUND, told, strict=True))


def used_s() -> float:
    """Of a processor, by this process and those that it waited for."""
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


def serve(connection: Connection) -> None:
    """Compile what comes, in a process group of its own, so that a compiler that runs for ever can be ended."""
    os.setsid()
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
    with contextlib.suppress(EOFError, BrokenPipeError):  # nobody asks any more
        while True:
            operator, job = connection.recv()
            soft = int(time.process_time() + LIMIT_S) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
            connection.send(compile_one(operator, job))


class Worker:
    """A process that compiles; another takes its place when it was ended."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, there = context.Pipe()
        self._process = context.Process(target=serve, args=(there,), daemon=True)
        self._process.start()
        there.close()

    def run(self, operator: str, job: Job) -> dict[str, object]:
        """What ``compile_one`` gives; only the time where that is more than may be."""
        self._connection.send((operator, job))
        try:
            if self._connection.poll(WAIT_S):
                return self._connection.recv()  # type: ignore[no-any-return]
        except EOFError:  # it had used its seconds of a processor
            pass
        self.end()
        self._start()
        return {"compile_s": f">{LIMIT_S:g}"}

    def end(self) -> None:
        """End it and its compiler."""
        if self._process.is_alive() and self._process.pid is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join()


def main() -> None:
    """Sweep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", type=int, default=[90])
    parser.add_argument("--operators", nargs="+", default=list(SPACES))
    parser.add_argument("--precisions", nargs="+", default=["tf32", "fp32", "fp16"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=25.0)
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    for operator in given.operators:
        sweep(operator, jobs(operator, given.targets, given.precisions), given.workers, end)


def sweep(operator: str, wanted: list[Job], workers: int, end: float) -> None:
    """Add to the table what of ``wanted`` is not in it, as far as there is time."""
    path, names = table_of(operator), columns(operator)
    path.touch()
    with path.open(newline="") as file:
        done = {tuple(row[name] for name in names[: -len(FOUND)]) for row in csv.DictReader(file)}
    left = iter([job for job in wanted if tuple(map(str, job.values())) not in done])
    with path.open("a", newline="") as file, ThreadPoolExecutor(workers) as threads:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        if not done:
            writer.writeheader()

        def work() -> None:
            worker = Worker()
            while time.monotonic() < end and (job := next(left, None)) is not None:
                writer.writerow({**job, **worker.run(operator, job)})
                file.flush()
            worker.end()

        for thread in [threads.submit(work) for _ in range(workers)]:
            thread.result()


if __name__ == "__main__":
    main()
