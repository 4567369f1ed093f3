"""The rivals that serve requests of several models on one processor, by name.

All run the same prepared models. A request is served when its outputs are there. On a GPU all rivals but breadth-first
order launch CUDA graphs that were recorded before the first request comes.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

from _breadth_first import BreadthFirst, operators_of
from _tenant_load import Load, Serve
from _tenant_log import Execution, Log
from _tenant_scheduled import Scheduled
from _tenant_trace import Arrivals

from split_infer_ros.runtime.num_threads import max_threads
from split_infer_ros.serving.execution_modes import ExecutionModes
from split_infer_ros.serving.merge_runner import Engine
from split_infer_ros.serving.request import Request
from split_infer_ros.serving.scheduler import Rules

SEQUENTIAL, CONCURRENT, BREADTH_FIRST = "sequential", "concurrent", "breadth-first"
MERGE, FUSE = "merge", "merge and fuse"
CHECKS = 3  # rounds of all models by which results are compared


def rivals(load: Load, ways: ExecutionModes, window: int) -> dict[str, Serve]:
    """All rivals by name: three that the paper compares with, and the scheduler without and with fusing and lanes.

    Args:
        load: what they run.
        ways: what executions cost; without lanes no rival has them.
        window: requests that the scheduler looks at.
    """
    found: dict[str, Serve] = {SEQUENTIAL: sequential}
    for workers in (2**power for power in range(1, max(2, max_threads()).bit_length())):
        found[f"{CONCURRENT}, {workers} workers"] = Concurrent(workers)
    operators = {name: operators_of(model) for name, model in load.models.items()}
    found[BREADTH_FIRST] = BreadthFirst(operators, len(load.models))
    for has_lanes in (False, True) if ways.lanes else (False,):
        for name in (MERGE, FUSE):
            way = ways if has_lanes else ExecutionModes(ways.whole)
            found[with_lanes(name) if has_lanes else name] = Scheduled(way, Rules(window, fuse=name == FUSE))
    return found


def with_lanes(name: str) -> str:
    """The name of a scheduled rival that may use lanes."""
    return f"{name}, lanes"


def kind(rival: str) -> str:
    """The name without its lanes or its count of workers."""
    return rival.partition(",")[0]


def sequential(trace: Sequence[Request], load: Load) -> Log:
    """One after the other, in the order of arrival, each on all cores."""
    engine, log = load.engine(), Log()
    arrivals, waiting = Arrivals(trace, log), deque[Request]()
    while True:
        waiting += arrivals.due()
        if not waiting:
            if not arrivals.wait():
                return log
            continue
        request = waiting.popleft()
        log.start_s[request.number] = arrivals.now()
        log.executions.append(Execution({request.model: 1}))
        engine.run({request.model: load.images[request.model]})
        log.end_s[request.number] = arrivals.now()


@dataclass(frozen=True)
class Concurrent:
    """So many at a time, in the order of arrival: each on its own cores, or in its own stream."""

    workers: int

    def check(self, load: Load) -> None:
        """Each worker's results beside the others are those of one that has the processor to itself.

        Raises:
            RuntimeError: they differ, so this rival's times would mean nothing.
        """
        engines = self._engines(load)
        alone = {
            name: [each.clone() for each in engines[0].run({name: image})[name]] for name, image in load.images.items()
        }

        def run(engine: Engine) -> None:
            for _ in range(CHECKS):
                for name, image in load.images.items():
                    for mine, other in zip(engine.run({name: image})[name], alone[name], strict=True):
                        # The same sums, maybe in another order.
                        if not bool((mine - other).abs().max() <= 1e-3 * other.abs().max()):
                            raise RuntimeError(f"{self.workers} workers side by side give wrong results for {name}.")

        with ThreadPoolExecutor(self.workers) as executor:
            list(executor.map(run, engines))

    def _engines(self, load: Load) -> list[Engine]:
        cores = max(1, max_threads() // self.workers)
        return [load.engine(cores=cores, number=number) for number in range(self.workers)]

    def __call__(self, trace: Sequence[Request], load: Load) -> Log:
        """Serve a trace."""
        log, lock = Log(), Lock()
        waiting: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        engines = self._engines(load)
        arrivals = Arrivals(trace, log)

        def work(engine: Engine) -> None:
            while (request := waiting.get()) is not None:
                with lock:
                    log.start_s[request.number] = arrivals.now()
                    log.executions.append(Execution({request.model: 1}))
                engine.run({request.model: load.images[request.model]})
                with lock:
                    log.end_s[request.number] = arrivals.now()

        with ThreadPoolExecutor(self.workers) as executor:
            done = [executor.submit(work, engine) for engine in engines]
            while True:
                for request in arrivals.due():
                    waiting.put(request)
                if not arrivals.wait():
                    break
            for _ in done:
                waiting.put(None)
            for worker in done:
                worker.result()
        return log
