"""The rivals that serve requests of several models on one processor.

All rivals run the same prepared models. A request is served when its outputs are computed. On a GPU, all rivals but
breadth-first order launch CUDA graphs, which were recorded before the first request comes.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

from benchmarks.multi_tenant.breadth_first import BreadthFirst, operators_of
from benchmarks.multi_tenant.load import Load, Serve
from benchmarks.multi_tenant.log import Execution, Log
from benchmarks.multi_tenant.scheduled import Scheduled
from benchmarks.multi_tenant.trace import Arrivals
from split_infer_ros.buffers.host_arrays import as_tensor
from split_infer_ros.engines.engine import Engine
from split_infer_ros.runtime.num_threads import max_threads
from split_infer_ros.server.execution.merge_runner import MergeRunner
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.request import Request
from split_infer_ros.server.schedule.scheduler import Rules

SEQUENTIAL, CONCURRENT, BREADTH_FIRST = "sequential", "concurrent", "breadth-first"
MERGE, FUSE = "merge", "merge and fuse"
CHECKS = 3  # in so many rounds of all models, results are compared


def rivals(load: Load, modes: ExecutionModes, window: int) -> dict[str, Serve]:
    """Returns all rivals by name: three from the paper, and the scheduler with and without fusing and lanes.

    Breadth-first order takes part only if all models run on torch, because it needs their operators.

    Args:
        load: the models that the rivals run.
        modes: the costs of executions. If they have no lanes, no rival uses lanes.
        window: from how many waiting requests the scheduler chooses.
    """
    by_name: dict[str, Serve] = {SEQUENTIAL: sequential}
    for workers in (2**power for power in range(1, max(2, max_threads()).bit_length())):
        by_name[f"{CONCURRENT}, {workers} workers"] = Concurrent(workers)
    if load.engines == {Engine.TORCH}:
        operators = {name: operators_of(model) for name, model in load.models.items()}
        by_name[BREADTH_FIRST] = BreadthFirst(operators, len(load.models))
    for has_lanes in (False, True) if modes.num_lanes else (False,):
        for name in (MERGE, FUSE):
            used = modes if has_lanes else ExecutionModes(modes.whole)
            by_name[with_lanes(name) if has_lanes else name] = Scheduled(used, Rules(window, fuse=name == FUSE))
    return by_name


def with_lanes(name: str) -> str:
    """Returns the name of a scheduled rival that may use lanes."""
    return f"{name}, lanes"


def kind(rival: str) -> str:
    """Returns a rival's name without its lanes or its number of workers."""
    return rival.partition(",")[0]


def sequential(trace: Sequence[Request], load: Load) -> Log:
    """Serves requests one after another, in the order of arrival, each on all cores."""
    runner, log = load.runner(), Log()
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
        runner.run({request.model: load.images[request.model]})
        log.end_s[request.number] = arrivals.now()


@dataclass(frozen=True)
class Concurrent:
    """Serves requests in the order of arrival with several workers at the same time.

    On a CPU, each worker has its own share of the cores. On a GPU, each has its own stream.

    Attributes:
        workers: the number of workers.
    """

    workers: int

    def check(self, load: Load) -> None:
        """Checks that concurrent workers give the same results as one worker alone.

        Raises:
            RuntimeError: the results differ, so this rival's times would mean nothing.
        """
        runners = self._runners(load)
        expected = {
            name: [as_tensor(value).clone() for value in runners[0].run({name: image})[name]]
            for name, image in load.images.items()
        }

        def run(runner: MergeRunner) -> None:
            for _ in range(CHECKS):
                for name, image in load.images.items():
                    for value, other in zip(runner.run({name: image})[name], expected[name], strict=True):
                        # Both compute the same sums, maybe in another order.
                        if not bool((as_tensor(value) - other).abs().max() <= 1e-3 * other.abs().max()):
                            raise RuntimeError(f"{self.workers} concurrent workers give wrong results for {name}.")

        with ThreadPoolExecutor(self.workers) as executor:
            list(executor.map(run, runners))

    def _runners(self, load: Load) -> list[MergeRunner]:
        num_threads = max(1, max_threads() // self.workers)
        return [load.runner(num_threads=num_threads, number=number) for number in range(self.workers)]

    def __call__(self, trace: Sequence[Request], load: Load) -> Log:
        """Serves a trace of requests; returns the log."""
        log, lock = Log(), Lock()
        waiting: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        runners = self._runners(load)
        arrivals = Arrivals(trace, log)

        def work(runner: MergeRunner) -> None:
            while (request := waiting.get()) is not None:
                with lock:
                    log.start_s[request.number] = arrivals.now()
                    log.executions.append(Execution({request.model: 1}))
                runner.run({request.model: load.images[request.model]})
                with lock:
                    log.end_s[request.number] = arrivals.now()

        with ThreadPoolExecutor(self.workers) as executor:
            working = [executor.submit(work, runner) for runner in runners]
            while True:
                for request in arrivals.due():
                    waiting.put(request)
                if not arrivals.wait():
                    break
            for _ in working:
                waiting.put(None)
            for worker in working:
                worker.result()
        return log
