"""Lets two plans of one model compute live frames in turns, until one has won."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.fusion_kind import FusionKind
from split_infer_ros.server.improving.measures import BatchSample
from split_infer_ros.server.improving.rivals import Rival
from split_infer_ros.server.improving.turns import Turns, Verdict
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.plan_changer import PlanChanger
from split_infer_ros.server.served_model import ServedModel

WAIT_S = 0.2  # how often a contest without frames checks whether it should end
MAX_TURN_S = 20.0  # a turn that gets too few frames for so long ends the contest, since other nodes wait for its end


class LiveContest:
    """A contest between the plan in force and a rival's plan. Both are held until it ends, then the loser is closed.

    The plans differ in their models, in their slots, or in both. Whoever changes settings while it runs ends it. The
    plan that they get is one of the model that served before.

    Args:
        served: the model that serves.
        rival: how it may run instead.
        plan_changer: makes the rival's plan, and puts plans in force.
        changing: the server's lock, which is held while plans change.
        is_over: says whether the contest should end early, for example because the server stops.

    Raises:
        ConfigurationError: the rival's plan cannot be made, or does not run.
    """

    def __init__(
        self,
        served: ServedModel,
        rival: Rival,
        plan_changer: PlanChanger,
        changing: threading.RLock,
        is_over: Callable[[], bool],
    ) -> None:
        self._served = served
        self._plan_changer = plan_changer
        self._changing = changing
        self._is_over: Callable[[], bool] = lambda: is_over() or not rival.is_wanted()
        self._turns = Turns(rival.measure)
        self._batches: SimpleQueue[tuple[bool, BatchSample]] = SimpleQueue()
        self._failure = ""  # of a batch of the rival
        with changing:  # otherwise the model could be closed meanwhile; changes of settings wait until it is compiled
            served.is_contested = True  # from here on, nothing else moves the split point
            try:
                rivals_plan = plan_changer.rival_plan(served, rival.model, rival.settings)
            except Exception:
                served.is_contested = False
                raise
            self._plans = {False: served.plan, True: rivals_plan}
            self._held = tuple(self._plans.values())
            for plan in self._held:
                served.instance.plans.hold(plan)

    def run(self) -> Verdict | None:
        """Gives both plans turns. Puts the winner in force, or the plan from before if nobody won. Call it once.

        Returns:
            The verdict; None if the contest ended early, or somebody else gave the model another plan at its end.

        Raises:
            ConfigurationError: the rival fails while frames flow.
        """
        verdict, instance = None, self._served.instance
        self._served.observe(self._observe)
        ignore, instance.note_failure = instance.note_failure, self._note_failure
        try:
            while verdict is None and self._take_turn():
                verdict = self._turns.verdict
        finally:
            instance.note_failure = ignore
            self._served.ignore(self._observe)
            self._served.is_contested = False
            rival_wins = verdict is not None and verdict.rival_wins
            is_settled = self._end(rival_wins=rival_wins)
            for plan in self._held:
                instance.plans.release(plan)
            self._plan_changer.build_stacks()  # models that came meanwhile may share one with the winner
        return verdict if is_settled else None

    def _take_turn(self) -> bool:
        """Waits until one turn has ended. Returns False if the contest should end."""
        if not self._put_in_force(rival=self._turns.rival_runs):
            return False
        end = time.monotonic() + MAX_TURN_S
        while time.monotonic() < end and not self._is_over():
            self._check_rival()
            try:
                of_rival, batch = self._batches.get(timeout=WAIT_S)
            except Empty:
                if not self._plan_changer.knows_costs:
                    end = time.monotonic() + MAX_TURN_S
                continue
            if self._turns.note(batch, of_rival=of_rival):
                return True
        return False

    def _check_rival(self) -> None:
        """Raises ConfigurationError if a batch of the rival was lost, or its costs cannot be measured."""
        if self._failure:
            raise ConfigurationError(f"It fails while frames flow ({self._failure.rstrip('.')}).")
        if self._served.failed and self._turns.rival_runs:
            raise ConfigurationError("It fails while its costs are measured.")

    def _note_failure(self, batch: Batch, reason: str) -> None:
        if self._side_of(batch.plan):
            self._failure = reason

    def _observe(self, batch: Batch) -> None:
        """Notes a batch that a head gave back (lock held).

        A batch does not count if other models' batches were part of its execution, or if the head lost frames of it.
        It does not count while costs are measured either. Then measurements run between the batches.
        """
        is_alone = batch.fusion is FusionKind.NONE and self._plan_changer.knows_costs
        side, count, times = self._side_of(batch.plan), len(batch.frames), batch.timeline
        if side is None or not is_alone or batch.published < count:
            return
        backbone_s = times.preprocessed - times.closed + (times.backbone_end - times.backbone_start) / batch.num_lanes
        received_at = statistics.fmean(frame.ticket.received_at for frame in batch.frames)
        latency_s, age_s = times.delivered - times.closed, times.delivered - received_at
        sample = BatchSample(times.delivered, count, backbone_s / count, latency_s, age_s, time.process_time())
        self._batches.put((side, sample))

    def _put_in_force(self, *, rival: bool) -> bool:
        """Puts one of both plans in force. Returns False if meanwhile somebody else gave the model another plan."""
        plan = self._served.lanes.follow(self._plans[rival])  # may compile, so without the lock
        with self._changing:
            in_force = self._served.plan
            side = self._side_of(in_force)
            if side is None or self._was_configured(in_force, side) or self._is_over():
                return False
            self._plans[side] = in_force  # it may have lanes now
            if side is not rival:
                self._plan_changer.put_in_force(self._served, plan)
            return True

    def _end(self, *, rival_wins: bool) -> bool:
        """Leaves the winner in force, with the settings that are in force now. Returns whether that was possible."""
        with self._changing:
            in_force = self._served.plan
            side = self._side_of(in_force)
            if side is None:  # the plan is somebody else's
                return False
            winner = self._plans[rival_wins]
            if self._was_configured(in_force, side):
                same = winner.with_settings(in_force.settings)
                winner = in_force if same is None else same  # a split point that the user named holds
            self._served.instance.model = winner.model
            if winner.model is not in_force.model or winner.pool is not in_force.pool:
                self._plan_changer.put_in_force(self._served, winner)
            return self._side_of(self._served.plan) is rival_wins

    def _was_configured(self, plan: Plan, side: bool) -> bool:
        """Returns whether somebody has set settings anew, even if they have the same values."""
        return plan.settings is not self._plans[side].settings

    def _side_of(self, plan: Plan) -> bool | None:
        """Returns whose plan it is: True for the rival, False for the plan from before, None for neither."""
        for side, known in self._plans.items():
            if plan.model is known.model and plan.pool is known.pool:
                return side
        return None
