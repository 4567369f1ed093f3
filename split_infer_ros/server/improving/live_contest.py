"""Lets two plans of one model compute live frames in turns, until one has won."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import Empty, SimpleQueue

from split_infer_ros.server.batch import Batch
from split_infer_ros.server.fusion_kind import FusionKind
from split_infer_ros.server.improving.turns import Turns, Verdict
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.plan_changer import PlanChanger
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.split.model import SplitModel

WAIT_S = 0.2  # how often a contest without frames checks whether it should end


@contextmanager
def observed_by(served: ServedModel, observe: Callable[[Batch], None]) -> Iterator[None]:
    """Calls a function with each batch of a model that a head gives back during the block (lock held)."""
    others, served.observers = served.observers, (*served.observers, observe)
    try:
        yield
    finally:
        served.observers = others


class LiveContest:
    """A contest between the plan in force and a rival's plan. Both use the same slots.

    Whoever changes settings while it runs ends it. The plan that they get is one of the model that served before.

    Args:
        served: the model that serves.
        rival: the same network on another engine.
        plan_changer: makes the rival's plan, and puts plans in force.
        changing: the server's lock, which is held while plans change.
        is_over: says whether the contest should end early, for example because the server stops.

    Raises:
        ConfigurationError: the rival's plan cannot be made, or does not run.
    """

    def __init__(
        self,
        served: ServedModel,
        rival: SplitModel,
        plan_changer: PlanChanger,
        changing: threading.RLock,
        is_over: Callable[[], bool],
    ) -> None:
        self._served = served
        self._rival = rival
        self._plan_changer = plan_changer
        self._changing = changing
        self._is_over = is_over
        self._turns = Turns()
        self._batches: SimpleQueue[tuple[bool, float, float]] = SimpleQueue()
        self._plans = {False: served.plan, True: plan_changer.rival_plan(served, rival)}

    def run(self) -> Verdict | None:
        """Gives both plans turns. Puts the winner in force, or the plan from before if nobody won.

        Returns:
            The verdict; None if the contest ended early.
        """
        verdict = None
        try:
            with observed_by(self._served, self._observe):
                while verdict is None and self._take_turn():
                    verdict = self._turns.verdict
        finally:
            self._end(rival_wins=verdict is not None and verdict.rival_wins)
        return verdict

    def _take_turn(self) -> bool:
        """Waits until one turn has ended. Returns False if the contest should end."""
        if not self._put_in_force(rival=self._turns.rival_runs):
            return False
        while not self._is_over():
            try:
                of_rival, image_s, now = self._batches.get(timeout=WAIT_S)
            except Empty:
                continue
            if self._turns.note(image_s, of_rival=of_rival, now=now):
                return True
        return False

    def _observe(self, batch: Batch) -> None:
        """Notes a batch that a head gave back (lock held)."""
        if batch.fusion is not FusionKind.NONE or batch.plan.pool is not self._plans[False].pool:
            return
        times = batch.timeline
        seconds = times.preprocessed - times.closed + (times.backbone_end - times.backbone_start) / batch.num_lanes
        self._batches.put((batch.plan.model is self._rival, seconds / len(batch.frames), times.delivered))

    def _put_in_force(self, *, rival: bool) -> bool:
        """Puts one of both plans in force. Returns False if meanwhile somebody else gave the model another plan."""
        plan = self._served.lanes.follow(self._plans[rival])  # may compile, so without the lock
        with self._changing:
            in_force = self._served.plan
            if self._is_foreign(in_force):
                return False
            self._plans[in_force.model is self._rival] = in_force  # it may have lanes now
            if in_force.model is not plan.model:
                self._plan_changer.put_in_force(self._served, plan)
            return True

    def _end(self, *, rival_wins: bool) -> None:
        """Leaves the winner in force, with the settings that are in force now."""
        with self._changing:
            in_force = self._served.plan
            if in_force.pool is self._plans[False].pool:
                winner = replace(self._plans[rival_wins], settings=in_force.settings)
                self._served.instance.model = winner.model
                if in_force.model is not winner.model:
                    self._plan_changer.put_in_force(self._served, winner)

    def _is_foreign(self, plan: Plan) -> bool:
        known = self._plans[plan.model is self._rival]
        return plan.pool is not known.pool or plan.settings != known.settings or self._is_over()
