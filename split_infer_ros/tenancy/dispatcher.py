"""The thread that decides what runs next; and in between measures what is not known yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

from split_infer_ros.pipeline.cores import use_all_cores
from split_infer_ros.tenancy.cost_book import CostBook
from split_infer_ros.tenancy.costs import Costs
from split_infer_ros.tenancy.engine import Engine
from split_infer_ros.tenancy.executor import Executor
from split_infer_ros.tenancy.measuring import Measuring
from split_infer_ros.tenancy.member import WaitingFrames, drop
from split_infer_ros.tenancy.model_line import Flight, ModelLine
from split_infer_ros.tenancy.scheduler import Rules, decide

TICK_S = 0.25  # how often slots are looked after while nothing else happens


class Dispatcher:
    """Decides, one execution after the other, and has each executed.

    Args:
        changed: guards all that is shared; methods that say so are called with it held.
        waiting: frames to choose from.
        engine: that executes.
        device: where.
        book: costs; the dispatcher measures what is missing.
        rules: how requests may be put together; may be replaced.
        on_error: the model's name and an exception that cost frames.

    Attributes:
        lines: the models that are served, by their keys.
    """

    def __init__(
        self,
        changed: threading.Condition,
        waiting: WaitingFrames,
        engine: Engine,
        device: torch.device,
        book: CostBook,
        rules: Rules,
        on_error: Callable[[str, Exception], None],
    ) -> None:
        self.lines: dict[str, ModelLine] = {}
        self.rules = rules
        self._changed = changed
        self._waiting = waiting
        self._engine = engine
        self._book = book
        self._on_error = on_error
        self._costs = Costs({}, {})
        self._leaving: list[ModelLine] = []
        self._stale = False  # the engine has not heard of the latest models, or of their costs
        self._measuring = Measuring(engine, book)
        self._running = False
        self._thread: threading.Thread | None = None
        self._executor = Executor(changed, engine, device, on_error)

    @property
    def all_lines(self) -> list[ModelLine]:
        """Those that are served, and those that go once their batches are back (lock held)."""
        return [*self.lines.values(), *self._leaving]

    @property
    def settled(self) -> bool:
        """True once all models are measured (lock held)."""
        return not self._stale and self._measuring.done

    def execution_s(self, model: str) -> float:
        """What an image takes alone, 0 as long as that is not known (lock held)."""
        return self._costs.batch_s(model, 1) if model in self._costs.alone_s else 0.0

    def add(self, line: ModelLine) -> None:
        """A model comes; it is served once it is measured (lock held)."""
        self.lines[line.key] = line
        self._book.open(line.key, line.model, line.plan.cut.name)
        self.renew()
        if self._running:
            line.head.start()

    def remove(self, line: ModelLine) -> None:
        """A model goes, for which nothing waits any more; what is under way is finished (lock held)."""
        del self.lines[line.key]
        self._leaving.append(line)
        self._book.close(line.key)
        self.renew()

    def renew(self) -> None:
        """Models came or went, or other batches are of interest now (lock held)."""
        self._measuring.begin_anew()
        self._stale = True
        self._changed.notify_all()

    def start(self) -> None:
        """Begin, until stop; may be started again."""
        with self._changed:
            self._running = True
            for line in self.all_lines:
                line.head.start()
        self._executor.start()
        self._thread = threading.Thread(target=self._loop, name="dispatch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish the execution that is under way, then end; heads go on."""
        with self._changed:
            self._running = False
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._executor.stop()

    def look_round(self) -> None:
        """Let the engine know what models there are, settle what comes back by itself, and end those that are done.

        On the dispatcher's own thread, or while it does not run.
        """
        with self._changed:
            lines = self.all_lines
            idle = [line for line in self._leaving if not line.out]
            self._leaving = [line for line in self._leaving if line.out]
            stale, self._stale = self._stale, False
            if stale:
                self._renew_costs()
            backbones = {key: line.plan.backbone for key, line in self.lines.items()}
            weights_s = {key: self.execution_s(key) or 1.0 for key in self.lines}
        if stale:
            self._engine.load(backbones, weights_s)
        for line in lines:
            line.collect(time.monotonic())
        for line in idle:
            line.close()

    def _loop(self) -> None:
        use_all_cores()
        while self._running:
            self.look_round()
            self._measure_once()
            flights = self._next_flights()
            if flights:
                self._executor.execute(flights)

    def _measure_once(self) -> None:
        """One sample of what is not known, between two executions, so that the others are served meanwhile."""
        with self._changed:
            measurement = None if self._stale else self._measuring.pick()
            self._changed.notify_all()
            if measurement is None:
                return
            self._changed.wait_for(lambda: not self._executor.ahead)  # alone on the device
        if not self._measuring.step(measurement):
            return
        with self._changed:
            if not self._measuring.conclude(measurement):
                return
            self._stale = True
        if measurement.failure is not None:
            for model, _ in measurement.combination:
                self._on_error(model, measurement.failure)

    def _renew_costs(self) -> None:
        """Say of each model whether it can be scheduled, or never will be (lock held)."""
        self._costs = self._book.costs()
        for key, line in self.lines.items():
            line.failed = self._book.failed(key)
            line.ready = not line.failed and (line.ready or self._book.is_ready(key))
            if line.failed:
                drop(self._waiting.take(self._waiting.of_models([key])), "backbone_error")

    def _next_flights(self) -> list[Flight]:
        """What is to be executed now; if nothing is, wait for a change."""
        with self._changed:
            before = len(self._waiting)
            flights = self._decide(time.monotonic()) if self._executor.has_room else []
            if flights:
                self._executor.ahead += 1
            elif self._running and self.settled and len(self._waiting) == before:  # else there may be more behind
                self._changed.wait(TICK_S)
            return flights

    def _decide(self, now: float) -> list[Flight]:
        able = {key for key, line in self.lines.items() if line.ready and line.has_room}
        decision = decide(self._waiting.of_models(able), self._costs, now, self.rules)
        drop(self._waiting.take(decision.late), "deadline")
        return [
            self.lines[batch.model].take_off(self._waiting.take(batch.requests), now) for batch in decision.batches
        ]
