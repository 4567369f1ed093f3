#!/usr/bin/env python3
"""Compiles every schedule of the convolutions' templates, without a GPU, and writes what the compiler reports.

    scripts/sweep_schedules.py [--operators pointwise] [--targets 90] [--precisions tf32 fp16] [--minutes 25]

The script adds missing rows to docs/results/triton_OPERATOR.csv. It can be stopped at any time and started again. The
rows written so far are an even sample of the whole space. The formulas of
split_infer_ros/vision_ops/launch_limits.py were made from these tables, and a test compares them with the tables.
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
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from split_infer_ros.vision_ops.schedules import SPACES, ConvolutionTemplate  # noqa: E402

LIMIT_S = 20.0  # the most processor time for a compilation
WAIT_S = 3 * LIMIT_S  # how long a compilation may take on a busy machine
RESULT_COLUMNS = ("compile_s", "shared_bytes", "registers", "spilled_bytes")
PRECISIONS = {
    ConvolutionTemplate.POINTWISE: ("tf32", "ieee", "fp16"),
    ConvolutionTemplate.WINDOWED: ("tf32", "ieee", "fp16"),
    ConvolutionTemplate.DEPTHWISE: ("fp32", "fp16"),
}
KERNELS = {
    ConvolutionTemplate.POINTWISE: (1,),
    ConvolutionTemplate.WINDOWED: (3,),
    ConvolutionTemplate.DEPTHWISE: (3, 5),
}
IMAGES, CHANNELS, SIDE = 16, 64, 28  # the compiler specialises most for multiples of 16

Job = dict[str, object]


def columns(template: ConvolutionTemplate) -> list[str]:
    """Returns the columns of a table: the compiled kernel, the schedule, and the compiler's report."""
    return ["target", "precision", "kernel", *SPACES[template].knobs, *RESULT_COLUMNS]


def table_path(template: ConvolutionTemplate) -> Path:
    """Returns the file with the results of a template."""
    return ROOT / "docs" / "results" / f"triton_{template.value}.csv"


def jobs(template: ConvolutionTemplate, targets: list[int], precisions: list[str]) -> list[Job]:
    """Returns all compilations. In their order, the first ones are always an even sample of the whole."""
    knobs = SPACES[template].knobs
    chosen = [precision for precision in PRECISIONS[template] if precision in precisions]
    ordered: list[Job] = [
        {"target": target, "precision": precision, "kernel": kernel, **dict(zip(knobs, values, strict=True))}
        for values in itertools.product(*knobs.values())
        for target, precision, kernel in itertools.product(targets, chosen, KERNELS[template])
    ]
    count = len(ordered)
    first_step = round(0.618 * count) or 1  # the golden ratio spreads the beginnings evenly
    step = next(step for step in range(first_step, count + 2) if math.gcd(step, count) == 1)
    return [ordered[place * step % count] for place in range(count)]


def compile_one(template: ConvolutionTemplate, job: Mapping[str, object]) -> dict[str, object]:
    """Compiles one schedule; returns the processor time in seconds and the compiler's report."""
    import torch

    from benchmarks.common.offline_triton import compile_launches
    from split_infer_ros.vision_ops.kernels.convolution import depthwise, pointwise
    from split_infer_ros.vision_ops.kernels.windowed_convolution import windowed

    dtype = torch.float16 if job["precision"] == "fp16" else torch.float32
    kernel = int(str(job["kernel"]))
    options: dict[str, Any] = {"low": 0.0, "high": 6.0, **{name: job[name] for name in SPACES[template].knobs}}
    window = {"kernel": kernel, "stride": 1, "padding": kernel // 2}
    tf32 = job["precision"] == "tf32"

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    maps, bias = empty(IMAGES, CHANNELS, SIDE, SIDE), empty(CHANNELS)

    def launch() -> None:
        if template is ConvolutionTemplate.POINTWISE:
            pointwise(maps, empty(CHANNELS, CHANNELS), bias, tf32=tf32, **options)
        elif template is ConvolutionTemplate.WINDOWED:
            weights = empty(CHANNELS, kernel * kernel * CHANNELS)
            windowed(maps, weights, bias, tf32=tf32, dilation=1, groups=1, **window, **options)
        else:
            depthwise(maps, empty(kernel * kernel, CHANNELS), bias, **window, **options)

    begin = processor_time_s()
    (compiled,) = compile_launches(launch, int(str(job["target"])))
    compile_s = round(processor_time_s() - begin, 2)
    reported = (compile_s, compiled.shared_bytes, compiled.registers, compiled.spilled_bytes)
    return dict(zip(RESULT_COLUMNS, reported, strict=True))


def processor_time_s() -> float:
    """Returns the processor time used by this process and by the processes that it waited for, in seconds."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def serve(connection: Connection) -> None:
    """Compiles the jobs that arrive, in a process group of its own, so that an endless compilation can be killed."""
    os.setsid()
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
    with contextlib.suppress(EOFError, BrokenPipeError):  # the other side has ended
        while True:
            template, job = connection.recv()
            soft = int(time.process_time() + LIMIT_S) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
            connection.send(compile_one(template, job))


class CompilerProcess:
    """Runs compilations in a process. If the process is killed, a new one replaces it."""

    _connection: Connection
    _process: SpawnProcess

    def start(self) -> None:
        """Starts the process."""
        context = multiprocessing.get_context("spawn")
        self._connection, there = context.Pipe()
        self._process = context.Process(target=serve, args=(there,), daemon=True)
        self._process.start()
        there.close()

    def run(self, template: ConvolutionTemplate, job: Job) -> dict[str, object]:
        """Returns the result of ``compile_one``, or only a lower bound of the time if it takes too long."""
        self._connection.send((template, job))
        try:
            if self._connection.poll(WAIT_S):
                return self._connection.recv()  # type: ignore[no-any-return]
        except EOFError:  # the process had used up its processor time
            pass
        self.kill()
        self.start()
        return {"compile_s": f">{LIMIT_S:g}"}

    def kill(self) -> None:
        """Kills the process and its compiler."""
        if self._process.is_alive() and self._process.pid is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join()


def main() -> None:
    """Sweeps the templates that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", type=int, default=[90])
    parser.add_argument(
        "--operators", nargs="+", type=ConvolutionTemplate, default=list(ConvolutionTemplate), metavar="OPERATOR"
    )
    parser.add_argument("--precisions", nargs="+", default=["tf32", "ieee", "fp32", "fp16"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=25.0)
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60 * arguments.minutes
    for template in arguments.operators:
        wanted = jobs(template, arguments.targets, arguments.precisions)
        sweep(template, wanted, num_workers=arguments.workers, deadline=deadline)


def sweep(template: ConvolutionTemplate, wanted: list[Job], *, num_workers: int, deadline: float) -> None:
    """Adds missing rows to a template's table, until none is missing or the deadline has passed."""
    path, names = table_path(template), columns(template)
    path.touch()
    with path.open(newline="") as file:
        done = {tuple(row[name] for name in names[: -len(RESULT_COLUMNS)]) for row in csv.DictReader(file)}
    missing = iter([job for job in wanted if tuple(map(str, job.values())) not in done])
    with path.open("a", newline="") as file, ThreadPoolExecutor(num_workers) as threads:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        if not done:
            writer.writeheader()

        def work() -> None:
            process = CompilerProcess()
            process.start()
            while time.monotonic() < deadline and (job := next(missing, None)) is not None:
                writer.writerow({**job, **process.run(template, job)})
                file.flush()
            process.kill()

        for future in [threads.submit(work) for _ in range(num_workers)]:
            future.result()


if __name__ == "__main__":
    main()
