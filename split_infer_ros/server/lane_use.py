"""Decides whether the batches of a model may use lanes. Prepares lanes when frames come fast."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from weakref import WeakKeyDictionary

from split_infer_ros.errors import Notice
from split_infer_ros.runtime.shortage import summarize_error
from split_infer_ros.server.model_instance import ModelInstance
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.warm_up import WarmUp
from split_infer_ros.split.model import SplitModel

# Lanes are prepared after this many batches in a row missed a lane, for at least this many seconds. Both limits are
# needed, because a busy machine delays the first few batches.
MISSED, MISSED_S = 8, 1.0


class LaneUse:
    """Prepares lanes for a model when batches come faster than all cores together serve them.

    For lanes, an engine may compile a network a second time. That takes time, and nearly as much memory again. So no
    lanes are prepared if a camera is slower than the model. While lanes are prepared, batches run on all cores. If
    lanes do not pay, or cannot be prepared, they are given up for the engine that runs, until the settings allow them
    more time.

    Args:
        instance: the model's instance.
        warm_up: warms up the model's plans.
        changed: the condition that guards state shared with other threads.
        ready: called when the plan in force has got lanes. The caller holds ``changed``.
        on_error: called with a notice if lanes cannot be prepared.
        tries: whether the model's batches themselves are timed to learn if lanes are faster; see ``note_batch``. If
            not, measured costs decide.
    """

    def __init__(
        self,
        instance: ModelInstance,
        warm_up: WarmUp,
        changed: threading.Condition,
        *,
        ready: Callable[[], object],
        on_error: Callable[[Exception], object],
        tries: bool,
    ) -> None:
        self._instance = instance
        self._warm_up = warm_up
        self._changed = changed
        self._ready = ready
        self._on_error = on_error
        self._tries = tries
        self._are_in_use = self._is_preparing = False
        # the limit with which lanes did not pay, by model, and by split point and batch size
        self._given_up: WeakKeyDictionary[SplitModel, dict[tuple[str, int], float]] = WeakKeyDictionary()
        self._missed, self._missed_since = 0, 0.0

    @property
    def may_be_used(self) -> bool:
        """Whether batches of the plan in force may run on a lane (lock held)."""
        return self._instance.plan.has_lanes and self._can_have(self._instance.plan)

    def note_batch(self, now: float, *, misses_lane: bool, lanes_pay: bool) -> None:
        """Notes that a batch begins (lock held). May start a thread that prepares lanes.

        Args:
            now: the time, in seconds of the steady clock.
            misses_lane: whether the batch would run on a lane if its plan had lanes.
            lanes_pay: False if the model's batches have shown that lanes do not pay.
        """
        plan = self._instance.plan
        if self._tries and not lanes_pay:
            self._give_up(plan)
        if not misses_lane or plan.has_lanes or not self._can_have(plan):
            self._missed = 0
            return
        self._missed_since = self._missed_since if self._missed else now
        self._missed += 1
        if self._missed >= MISSED and now - self._missed_since >= MISSED_S and not self._is_preparing:
            self._is_preparing = True
            threading.Thread(target=self._prepare, args=(plan,), name="prepare lanes").start()

    def follow(self, plan: Plan) -> Plan:
        """Returns a plan as it will be used. If the model uses lanes, prepares them first, unless the plan has them."""
        if plan.has_lanes:
            return plan
        is_ready = not self._tries and not self._warm_up.prepares_lanes(plan)
        if (self._are_in_use or is_ready) and self._can_have(plan) and self._prepared(plan):
            return replace(plan, has_lanes=True)
        return plan

    def _can_have(self, plan: Plan) -> bool:
        is_untried = plan.settings.lane_limit > self._given_up.get(plan.model, {}).get(_point(plan), 0.0)
        return plan.may_use_lanes and is_untried and self._warm_up.can_use_lanes(plan)

    def _give_up(self, plan: Plan) -> None:
        self._are_in_use = False
        self._given_up.setdefault(plan.model, {})[_point(plan)] = plan.settings.lane_limit

    def _prepare(self, plan: Plan) -> None:
        is_prepared = self._prepared(plan)
        with self._changed:
            self._is_preparing = False
            current = self._instance.plan
            is_same = current.pool is plan.pool and current.model is plan.model
            if is_prepared and is_same:  # otherwise another plan is in force, which asks for its own lanes
                self._are_in_use = True
                self._instance.use(replace(current, has_lanes=True))
                self._ready()

    def _prepared(self, plan: Plan) -> bool:
        """Warms up a plan on lanes. Returns whether that worked. If not, gives lanes up and reports why."""
        try:
            self._warm_up.run_on_lanes(plan)
        except Exception as error:
            self._give_up(plan)
            key = self._instance.key
            self._on_error(Notice(f"{key} computes no two batches at the same time ({summarize_error(error)})."))
            return False
        return True


def _point(plan: Plan) -> tuple[str, int]:
    return plan.split_point.name, plan.settings.batch_size
