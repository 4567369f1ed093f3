"""The ways to serve requests of several models on one processor; all run the same prepared models.

What comes is the same seeded trace for all. A request is served when its outputs are there; its queueing delay is from
its arrival until its execution starts. On a GPU all launch CUDA graphs that were recorded before the first request
comes, but for breadth-first order: it is about the order of operators, which a graph would fix.
"""

from __future__ import annotations

import itertools
import queue
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Condition, Lock

import torch
from torch import Tensor, fx

from split_infer_ros.runtime.streams import Stream
from split_infer_ros.split.cores import all_cores, use_cores
from split_infer_ros.split.model import SplitModel
from split_infer_ros.tenancy.costs import Costs, Group, group
from split_infer_ros.tenancy.engine import Engine
from split_infer_ros.tenancy.floor import Floor, Turn
from split_infer_ros.tenancy.graph_choice import MOST_FORESEEN, foreseen, padded
from split_infer_ros.tenancy.request import Request, RequestQueue, turn_s
from split_infer_ros.tenancy.scheduler import Rules
from split_infer_ros.tenancy.ways import Ways

SHORTEST_SLEEP_S = 2e-4
CAMERAS = 8
CHECKS = 3  # rounds of all models by which results are compared


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
    """The models and an image for each; all on one device.

    Attributes:
        models: by name.
        images: one for each model.
        engines: that rivals were given so far, by their cores and numbers.
    """

    models: Mapping[str, SplitModel]
    images: Mapping[str, Tensor]
    engines: dict[tuple[int | None, int], Engine] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where all models are."""
        return next(iter(self.models.values())).device

    def new_engine(self, cores: int | None = None) -> Engine:
        """One that has all of the models, which count the same; it is the caller's to close."""
        made = Engine(self.device, cores=cores)
        self._give_models(made, None)
        return made

    def engine(self, costs: Costs | None = None, cores: int | None = None, number: int = 0) -> Engine:
        """The one of so many cores that has this number, so that what a GPU recorded for a rival stays recorded.

        Args:
            costs: by which models share cores; None: all count the same.
            cores: of a CPU; None: all.
            number: of those that work side by side.
        """
        if (cores, number) not in self.engines:
            self.engines[cores, number] = Engine(self.device, cores=cores)
        made = self.engines[cores, number]
        self._give_models(made, costs)
        self.record(made, [((name, 1),) for name in self.models])
        return made

    def record(self, engine: Engine, combinations: Iterable[Group]) -> None:
        """Have these ready on a GPU before requests come; several models as one only as far as there is memory."""
        for combination in combinations:
            if engine.graphs is None or len(combination) == 1 or engine.graphs.has_room(combination):
                engine.prepare({name: self.batch(name, count) for name, count in combination})

    def close(self) -> None:
        """End the engines that rivals were given."""
        for engine in self.engines.values():
            engine.close()
        self.engines.clear()

    def _give_models(self, engine: Engine, costs: Costs | None) -> None:
        backbones = {name: model.backbone("output") for name, model in self.models.items()}
        engine.load(backbones, {name: costs.batch_s(name, 1) if costs else 1.0 for name in backbones})

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
        trace.append(Request(number, f"{model} {number % CAMERAS}", model, now))
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
        cores = max(1, all_cores() // self.workers)
        return [load.engine(cores=cores, number=number) for number in range(self.workers)]

    def __call__(self, trace: Sequence[Request], load: Load) -> Log:
        log, lock = Log(), Lock()
        waiting: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        engines = self._engines(load)
        arrivals = Arrivals(trace, log)

        def work(engine: Engine) -> None:
            while (request := waiting.get()) is not None:
                with lock:
                    log.start_s[request.number] = arrivals.now()
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


@dataclass(frozen=True)
class BreadthFirst:
    """Operators of several requests by turns: a piece of each, then the next piece of each.

    Its kernels are launched one by one on a GPU as well: a graph of a piece would fix the order that this is about.
    """

    window: int

    @torch.inference_mode()
    def __call__(self, trace: Sequence[Request], load: Load) -> Log:
        use_cores(all_cores())
        pieces = {name: model.segments()[0] for name, model in load.models.items()}
        stream = Stream(load.device)
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
            with stream.work("turn"):
                for request, left, values in running:
                    values = left.popleft()(*values)
                    if left:
                        still.append((request, left, values))
                        continue
                    stream.fence().wait()
                    log.end_s[request.number] = arrivals.now()
            running = still


@dataclass(frozen=True)
class Scheduled:
    """The package's scheduler and engines: with all cores or the GPU, and where there are lanes on these.

    Attributes:
        ways: what executions cost; those without lanes have none.
        rules: how requests may be put together.
    """

    ways: Ways
    rules: Rules

    def __call__(self, trace: Sequence[Request], load: Load) -> Log:
        log, floor, waiting, changed = Log(), Floor(self.ways.lanes), RequestQueue(), Condition()
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
                    floor.end(turn)
                    changed.notify()

        with ThreadPoolExecutor(max(1, len(lanes))) as helpers:
            running: list[Future[None]] = []
            while True:
                with changed:
                    for request in arrivals.due():
                        patience_s = self.ways.whole.batch_s(request.model, 1)  # as without deadlines of their own
                        waiting.add(replace(request, turn_s=turn_s(request.arrival_s, patience_s, priority=0)))
                    now = arrivals.now()
                    turn = floor.choose(waiting, self.ways, now, self.rules)
                    waiting.remove(turn.decision.requests)  # the trace's requests have no deadlines: nothing is late
                    if turn.decision.batches:
                        floor.begin(turn, now)
                        log.start_s.update({request.number: now for request in turn.decision.requests})
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


def to_record(costs: Costs, rules: Rules) -> Iterator[Group]:
    """What the pipeline has recorded on a GPU before it serves: each model's batches, and several models as one.

    The largest come first: if memory is short they give way, and launches are the least part of what they take.
    """
    largest = padded(min(rules.window, rules.most))
    for power in reversed(range(largest.bit_length())):
        for model in costs.alone_s:
            yield group({model: 2**power})
    yield from itertools.islice(foreseen(costs, rules), MOST_FORESEEN)
