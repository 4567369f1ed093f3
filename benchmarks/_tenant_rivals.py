"""The ways to serve requests of several models on one processor; all run the same prepared models.

What comes is the same seeded trace for all. A request is served when its outputs are there; its queueing delay is from
its arrival until its execution starts.
"""

from __future__ import annotations

import queue
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Condition, Lock

import torch
from torch import Tensor, fx

from split_infer_ros.pipeline.cores import all_cores, use_cores
from split_infer_ros.pipeline.device import DeviceQueue
from split_infer_ros.split.model import SplitModel
from split_infer_ros.tenancy.costs import Costs
from split_infer_ros.tenancy.engine import Engine
from split_infer_ros.tenancy.request import Request, RequestQueue
from split_infer_ros.tenancy.scheduler import Decision, Rules, decide
from split_infer_ros.tenancy.side_by_side import sooner_together

SHORTEST_SLEEP_S = 2e-4
CAMERAS = 8


@dataclass
class Log:
    """When each request came, began and ended, seconds from the start; by number."""

    arrival_s: dict[int, float] = field(default_factory=dict)
    start_s: dict[int, float] = field(default_factory=dict)
    end_s: dict[int, float] = field(default_factory=dict)

    @property
    def per_second(self) -> float:
        """Requests served, from the first arrival to the last end."""
        return len(self.end_s) / (max(self.end_s.values()) - min(self.arrival_s.values()))

    @property
    def delays_s(self) -> list[float]:
        """From arrival to start, ascending."""
        return sorted(start - self.arrival_s[number] for number, start in self.start_s.items())

    @property
    def responses_s(self) -> list[float]:
        """From arrival to end, ascending."""
        return sorted(end - self.arrival_s[number] for number, end in self.end_s.items())

    @property
    def executions_s(self) -> list[float]:
        """From start to end."""
        return [end - self.start_s[number] for number, end in self.end_s.items()]


@dataclass(frozen=True)
class Load:
    """The models and an image for each; all on one device."""

    models: Mapping[str, SplitModel]
    images: Mapping[str, Tensor]

    def engine(self, costs: Costs | None = None, cores: int | None = None) -> Engine:
        """One that has all of the models; without costs all count the same."""
        made = Engine(next(iter(self.models.values())).device, cores=cores)
        backbones = {name: model.backbone("output") for name, model in self.models.items()}
        made.load(backbones, {name: costs.batch_s(name, 1) if costs else 1.0 for name in backbones})
        return made

    def batch(self, model: str, count: int) -> Tensor:
        """So many images of a model's, put together anew as those of real requests are."""
        return torch.cat([self.images[model]] * count) if count > 1 else self.images[model]


def poisson_trace(models: Sequence[str], count: int, per_second: float, seed: int = 0) -> list[Request]:
    """As many requests of each model as of any other (the last has what is left over), in random order.

    Each model has ``CAMERAS`` tenants, whose frames come in turn.
    """
    chance = random.Random(seed)
    names = [models[min(index * len(models) // count, len(models) - 1)] for index in range(count)]
    chance.shuffle(names)
    now, trace = 0.0, []
    for number, model in enumerate(names):
        now += chance.expovariate(per_second)
        trace.append(Request(number, f"{model} {number % CAMERAS}", model, now, turn_s=now))
    return trace


Serve = Callable[[Sequence[Request], Load], Log]


class Arrivals:
    """The trace against the clock."""

    def __init__(self, trace: Sequence[Request], log: Log) -> None:
        self._coming = deque(trace)
        self._log = log
        self._begin = time.perf_counter()

    def now(self) -> float:
        """Seconds from the start."""
        return time.perf_counter() - self._begin

    def due(self) -> list[Request]:
        """What has come since the last call."""
        now, found = self.now(), []
        while self._coming and self._coming[0].arrival_s <= now:
            request = self._coming.popleft()
            self._log.arrival_s[request.number] = request.arrival_s
            found.append(request)
        return found

    def wait(self) -> bool:
        """Sleep until the next one comes; False if none will."""
        seconds = self.next_s
        if seconds is not None:
            time.sleep(seconds)
        return seconds is not None

    @property
    def next_s(self) -> float | None:
        """Until the next one comes; None if none will."""
        return max(self._coming[0].arrival_s - self.now(), SHORTEST_SLEEP_S) if self._coming else None


def sequential(trace: Sequence[Request], load: Load) -> Log:
    """One after the other, in the order of arrival, each on all cores."""
    engine, log = load.engine(), Log()
    arrivals, waiting = Arrivals(trace, log), deque[Request]()
    while True:
        waiting += arrivals.due()
        if not waiting:
            if not arrivals.wait():
                engine.close()
                return log
            continue
        request = waiting.popleft()
        log.start_s[request.number] = arrivals.now()
        engine.run({request.model: load.images[request.model]})
        log.end_s[request.number] = arrivals.now()


@dataclass(frozen=True)
class Concurrent:
    """So many at a time, in the order of arrival: each on its own cores, or in its own stream."""

    workers: int

    def __call__(self, trace: Sequence[Request], load: Load) -> Log:
        log, lock = Log(), Lock()
        waiting: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        cores = max(1, all_cores() // self.workers)
        arrivals = Arrivals(trace, log)

        @torch.inference_mode()
        def work() -> None:
            use_cores(cores)
            device_queue = DeviceQueue(next(iter(load.models.values())).device)
            while (request := waiting.get()) is not None:
                with lock:
                    log.start_s[request.number] = arrivals.now()
                with device_queue.work(request.model):
                    load.models[request.model].backbone("output")(load.images[request.model])
                device_queue.mark().wait()
                with lock:
                    log.end_s[request.number] = arrivals.now()

        with ThreadPoolExecutor(self.workers) as executor:
            done = [executor.submit(work) for _ in range(self.workers)]
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


@dataclass(frozen=True)
class BreadthFirst:
    """Operators of several requests by turns: a piece of each, then the next piece of each."""

    window: int

    @torch.inference_mode()
    def __call__(self, trace: Sequence[Request], load: Load) -> Log:
        use_cores(all_cores())
        pieces = {name: model.segments()[0] for name, model in load.models.items()}
        device_queue = DeviceQueue(next(iter(load.models.values())).device)
        log = Log()
        arrivals, waiting = Arrivals(trace, log), deque[Request]()
        running: list[tuple[Request, deque[fx.GraphModule], tuple[Tensor, ...]]] = []
        while True:
            waiting += arrivals.due()
            while waiting and len(running) < self.window:
                request = waiting.popleft()
                log.start_s[request.number] = arrivals.now()
                running.append((request, deque(pieces[request.model]), (load.images[request.model],)))
            if not running:
                if not arrivals.wait():
                    return log
                continue
            still = []
            with device_queue.work("turn"):
                for request, left, values in running:
                    values = left.popleft()(*values)
                    if left:
                        still.append((request, left, values))
                        continue
                    device_queue.mark().wait()
                    log.end_s[request.number] = arrivals.now()
            running = still


@dataclass(frozen=True)
class Scheduled:
    """The package's scheduler and engine."""

    costs: Costs
    rules: Rules

    def __call__(self, trace: Sequence[Request], load: Load) -> Log:
        engine, waiting, log = load.engine(self.costs), RequestQueue(), Log()
        arrivals = Arrivals(trace, log)
        while True:
            for request in arrivals.due():
                waiting.add(request)
            decision = decide(waiting, self.costs, arrivals.now(), self.rules)
            if not decision.batches:  # the trace's requests have no deadlines, so nothing is late
                if not arrivals.wait():
                    engine.close()
                    return log
                continue
            waiting.remove(decision.requests)
            now = arrivals.now()
            log.start_s.update({request.number: now for request in decision.requests})
            engine.run({batch.model: load.batch(batch.model, len(batch.requests)) for batch in decision.batches})
            now = arrivals.now()
            log.end_s.update({request.number: now for request in decision.requests})


@dataclass(frozen=True)
class ScheduledOnLanes:
    """The package's scheduler and an engine on each core; where that is sooner done, the next execution has all cores.

    Attributes:
        whole: costs on all cores.
        lane: costs on a lane, while all are at work.
        rules: how requests may be put together.
        lanes: how many, one a core.
    """

    whole: Costs
    lane: Costs
    rules: Rules
    lanes: int

    def __call__(self, trace: Sequence[Request], load: Load) -> Log:
        log = Log()
        whole, lanes = load.engine(self.whole), [load.engine(cores=1) for _ in range(self.lanes)]
        floor = _Floor(self, Arrivals(trace, log), log)

        def work(lane: int) -> None:
            while (taken := floor.take(may_have_all=lane == 0)) is not None:
                decision, has_all = taken
                engine = whole if has_all else lanes[lane]
                engine.run({batch.model: load.batch(batch.model, len(batch.requests)) for batch in decision.batches})
                floor.done(decision)

        with ThreadPoolExecutor(self.lanes) as executor:
            for worker in [executor.submit(work, lane) for lane in range(self.lanes)]:
                worker.result()
        for engine in (whole, *lanes):
            engine.close()
        return log


class _Floor:
    """What waits and who is at work."""

    def __init__(self, way: ScheduledOnLanes, arrivals: Arrivals, log: Log) -> None:
        self._way, self._arrivals, self._log = way, arrivals, log
        self._waiting = RequestQueue()
        self._busy: set[str] = set()
        self._all_taken = False
        self._changed = Condition()

    def take(self, may_have_all: bool) -> tuple[Decision, bool] | None:
        """The next execution, as soon as there is one, and whether it has all cores; None once there will be none."""
        with self._changed:
            while True:
                for request in self._arrivals.due():
                    self._waiting.add(request)
                together = self._is_sooner_together()
                decision = Decision()
                if not self._all_taken and (may_have_all or not together):
                    costs, rules = self._way.lane, self._way.rules
                    if together:
                        costs, rules = self._way.whole, replace(rules, fuse=True)
                    decision = decide(self._waiting, costs, self._arrivals.now(), rules, self._busy)
                if decision.batches:
                    self._begin(decision)
                    self._all_taken = together
                    return decision, together
                until = self._arrivals.next_s
                if until is None and not len(self._waiting):
                    return None
                self._changed.wait(until)

    def done(self, decision: Decision) -> None:
        """The execution came to its end."""
        with self._changed:
            self._all_taken = False
            now = self._arrivals.now()
            self._log.end_s.update({request.number: now for request in decision.requests})
            self._busy -= {request.tenant for request in decision.requests}
            self._changed.notify_all()

    def _is_sooner_together(self) -> bool:
        window, way = self._waiting[: self._way.rules.window], self._way
        return bool(window) and not self._busy and sooner_together(window, way.lane, way.whole, way.lanes)

    def _begin(self, decision: Decision) -> None:
        self._waiting.remove(decision.requests)
        self._busy |= {request.tenant for request in decision.requests}
        now = self._arrivals.now()
        self._log.start_s.update({request.number: now for request in decision.requests})
