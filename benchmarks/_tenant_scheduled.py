"""The package's scheduler and engines against a trace: what the node does, without cameras and results."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Condition

from _tenant_load import Load
from _tenant_log import Execution, Log
from _tenant_trace import Arrivals

from split_infer_ros.serving.execution_costs import ExecutionCosts, Group, group
from split_infer_ros.serving.execution_modes import ExecutionModes
from split_infer_ros.serving.graph_policy import MOST_FORESEEN, foreseen, padded
from split_infer_ros.serving.lane_scheduler import LaneScheduler, Turn
from split_infer_ros.serving.request import Request, RequestQueue, turn_s
from split_infer_ros.serving.scheduler import Rules


@dataclass(frozen=True)
class Scheduled:
    """Serves with all cores or the GPU, and on lanes where there are lanes.

    Attributes:
        ways: what executions cost; those without lanes have none.
        rules: how requests may be put together.
    """

    ways: ExecutionModes
    rules: Rules

    def __call__(self, trace: Sequence[Request], load: Load) -> Log:
        """Serve a trace."""
        log, lane_scheduler, waiting, changed = Log(), LaneScheduler(self.ways.lanes), RequestQueue(), Condition()
        whole = load.engine(self.ways.whole)
        lanes = [load.engine(cores=1, number=number) for number in range(self.ways.lanes)]
        load.record(whole, to_record(self.ways.whole, self.rules))
        arrivals = Arrivals(trace, log)

        def execute(turn: Turn) -> None:
            engine = whole if turn.lane is None else lanes[turn.lane]
            batches = {batch.model: load.batch(batch.model, len(batch.requests)) for batch in turn.decision.batches}
            try:
                engine.run(batches)
            finally:
                with changed:
                    now = arrivals.now()
                    log.end_s.update({request.number: now for request in turn.decision.requests})
                    lane_scheduler.end(turn)
                    changed.notify()

        with ThreadPoolExecutor(max(1, len(lanes))) as helpers:
            running: list[Future[None]] = []
            while True:
                with changed:
                    for request in arrivals.due():
                        patience_s = self.ways.whole.batch_s(request.model, 1)  # as without deadlines of their own
                        waiting.add(replace(request, turn_s=turn_s(request.arrival_s, patience_s, priority=0)))
                    now = arrivals.now()
                    turn = lane_scheduler.choose(waiting, self.ways, now, self.rules)
                    waiting.remove(turn.decision.requests)  # the trace's requests have no deadlines: nothing is late
                    if turn.decision.batches:
                        lane_scheduler.begin(turn, now)
                        log.start_s.update({request.number: now for request in turn.decision.requests})
                        counts = {batch.model: len(batch.requests) for batch in turn.decision.batches}
                        log.executions.append(Execution(counts, turn.lane is not None))
                    elif arrivals.next_s is None and not waiting:
                        break
                    else:
                        changed.wait(arrivals.next_s)
                        continue
                if turn.lane is None:
                    execute(turn)
                else:
                    running.append(helpers.submit(execute, turn))
            for lane in running:
                lane.result()
        return log


def to_record(costs: ExecutionCosts, rules: Rules) -> Iterator[Group]:
    """What the pipeline records on a GPU before it serves: each model's batches, and several models as one.

    The largest come first: if memory is short they give way, and launches are the least part of what they take.
    """
    largest = padded(min(rules.window, rules.most))
    for power in reversed(range(largest.bit_length())):
        for model in costs.alone_s:
            yield group({model: 2**power})
    yield from itertools.islice(foreseen(costs, rules), MOST_FORESEEN)
