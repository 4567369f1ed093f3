"""Lets two plans of one model compute live frames in turns, until one has won."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.fusion_kind import FusionKind
from split_infer_ros.server.improving.turns import Turns, Verdict
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.plan_changer import PlanChanger
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.split.model import SplitModel

WAIT_S = 0.2  # how often a contest without frames checks whether it should end
MAX_TURN_S = 20.0  # a turn that gets too few frames for so long ends the contest, since other nodes wait for its end


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
        with changing:  # otherwise the model could be closed meanwhile; changes of settings wait until it is compiled
            self._plans = {False: served.plan, True: plan_changer.rival_plan(served, rival)}

    def run(self) -> Verdict | None:
        """Gives both plans turns. Puts the winner in force, or the plan from before if nobody won.

        Returns:
            The verdict; None if the contest ended early.

        Raises:
            ConfigurationError: the rival fails while frames flow.
        """
        verdict = None
        self._served.is_contested = True
        self._served.observers = (*self._served.observers, self._observe)
        try:
            while verdict is None and self._take_turn():
                verdict = self._turns.verdict
        finally:
            self._served.observers = tuple(each for each in self._served.observers if each != self._observe)
            self._served.is_contested = False
            self._end(rival_wins=verdict is not None and verdict.rival_wins)
            self._plan_changer.build_stacks()  # models that came meanwhile may share one with the winner
        return verdict

    def _take_turn(self) -> bool:
        """Waits until one turn has ended. Returns False if the contest should end."""
        if not self._put_in_force(rival=self._turns.rival_runs):
            return False
        end = time.monotonic() + MAX_TURN_S
        while time.monotonic() < end and not self._is_over():
            self._check_rival()
            try:
                of_rival, image_s, now = self._batches.get(timeout=WAIT_S)
            except Empty:
                if not self._plan_changer.knows_costs:
                    end = time.monotonic() + MAX_TURN_S
                continue
            if self._turns.note(image_s, of_rival=of_rival, now=now):
                return True
        return False

    def _check_rival(self) -> None:
        """Raises ConfigurationError if a batch of the rival was lost, or its costs cannot be measured."""
        reason = self._served.instance.failure_by_model.get(self._rival)
        if reason is not None:
            raise ConfigurationError(f"It fails while frames flow ({reason.rstrip('.')}).")
        if self._served.failed and self._turns.rival_runs:
            raise ConfigurationError("It fails while its costs are measured.")

    def _observe(self, batch: Batch) -> None:
        """Notes a batch that a head gave back (lock held).

        A batch does not count if other models' batches were part of its execution, or while costs are measured. Then
        measurements run between the batches.
        """
        is_alone = batch.fusion is FusionKind.NONE and self._plan_changer.knows_costs
        if not is_alone or batch.plan.pool is not self._plans[False].pool:
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
