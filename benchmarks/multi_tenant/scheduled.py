"""Lets the package's scheduler and runners serve a trace, as the node does, but without cameras and results."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Condition

from benchmarks.multi_tenant.load import Load
from benchmarks.multi_tenant.log import Execution, Log
from benchmarks.multi_tenant.trace import Arrivals
from split_infer_ros.server.schedule.execution_costs import Combination, ExecutionCosts, combination_of
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.graph_policy import MAX_FORESEEN, foreseen_combinations
from split_infer_ros.server.schedule.graph_sizes import padded_size
from split_infer_ros.server.schedule.lane_scheduler import LaneScheduler, ScheduledExecution
from split_infer_ros.server.schedule.request import Request, RequestQueue, virtual_deadline_s
from split_infer_ros.server.schedule.scheduler import Rules


@dataclass(frozen=True)
class Scheduled:
    """Serves requests on all cores or on the GPU, and on lanes if there are any.

    Attributes:
        modes: the costs of executions.
        rules: which requests may be combined.
    """

    modes: ExecutionModes
    rules: Rules

    def __call__(self, trace: Sequence[Request], load: Load) -> Log:
        """Serves a trace of requests; returns the log."""
        log, scheduler, waiting, changed = Log(), LaneScheduler(self.modes.num_lanes), RequestQueue(), Condition()
        whole = load.runner(self.modes.whole)
        lanes = [load.runner(num_threads=1, number=number) for number in range(self.modes.num_lanes)]
        load.record(whole, to_record(self.modes.whole, self.rules))
        arrivals = Arrivals(trace, log)

        def execute(execution: ScheduledExecution) -> None:
            decision = execution.decision
            runner = whole if execution.lane is None else lanes[execution.lane]
            batches = {batch.model: load.batch(batch.model, len(batch.requests)) for batch in decision.batches}
            try:
                runner.run(batches, load.stacks.get(decision.stack))
            finally:
                with changed:
                    now = arrivals.now()
                    log.end_s.update({request.number: now for request in decision.requests})
                    scheduler.end(execution, now)
                    changed.notify()

        with ThreadPoolExecutor(max(1, len(lanes))) as threads:
            running: list[Future[None]] = []
            while True:
                with changed:
                    for request in arrivals.due():
                        waiting.add(self._ordered(request))
                    now = arrivals.now()
                    execution = scheduler.choose(waiting, self.modes, now=now, rules=self.rules)
                    decision = execution.decision
                    waiting.remove(decision.requests)  # the trace's requests have no deadlines: none is late
                    if decision.batches:
                        scheduler.begin(execution, now)
                        log.start_s.update({request.number: now for request in decision.requests})
                        counts = {batch.model: len(batch.requests) for batch in decision.batches}
                        on_lane, is_stacked = execution.lane is not None, bool(decision.stack)
                        log.executions.append(Execution(counts, on_lane, is_stacked))
                    elif arrivals.next_s is None and not waiting:
                        break
                    else:
                        changed.wait(arrivals.next_s)
                        continue
                if execution.lane is None:
                    execute(execution)
                else:
                    running.append(threads.submit(execute, execution))
            for lane in running:
                lane.result()
        return log

    def _ordered(self, request: Request) -> Request:
        """Returns the request with a virtual deadline, as for a tenant without a deadline."""
        patience_s = self.modes.whole.batch_s(request.model, 1)
        return replace(request, virtual_deadline_s=virtual_deadline_s(request.arrival_s, patience_s, priority=0))


def to_record(costs: ExecutionCosts, rules: Rules) -> Iterator[Combination]:
    """Yields the executions of which the pipeline records graphs on a GPU before it serves.

    First come the batches of each model, the largest first. Then come stacks, and then fused models. If memory is
    short, the graphs of the largest batches are dropped first, because launches are the smallest share of their time.
    """
    largest = min(rules.window, rules.max_batch_size)
    for size in sorted({padded_size(count) for count in range(1, largest + 1)}, reverse=True):
        for model in costs.alone_s:
            yield combination_of({model: size})
    for name, stack in costs.stacks.items():
        for size in stack.seconds:
            yield combination_of({name: size})
    yield from itertools.islice(foreseen_combinations(costs, rules), MAX_FORESEEN)
