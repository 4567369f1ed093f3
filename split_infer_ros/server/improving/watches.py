"""The served models whose precision was changed while they serve, and the way back to fp32."""

from __future__ import annotations

import threading
from collections.abc import Callable

from split_infer_ros.errors import error_sentence
from split_infer_ros.server.improving.agreement_check import AgreementCheck
from split_infer_ros.server.improving.precision_watch import PrecisionWatch
from split_infer_ros.server.plan_changer import PlanChanger
from split_infer_ros.server.served_model import ServedModel


class Watches:
    """Watches over all models that run in another precision than they began with.

    Args:
        plan_changer: makes plans, and puts them in force.
        changing: the server's lock, which is held while plans change.
        say: called with a model's key and a sentence for the user.
    """

    def __init__(self, plan_changer: PlanChanger, changing: threading.RLock, say: Callable[[str, str], object]) -> None:
        self._plan_changer = plan_changer
        self._changing = changing
        self._say = say
        self._guard = threading.Lock()
        self._watches: dict[ServedModel, PrecisionWatch] = {}
        self._run = False

    def add(self, served: ServedModel, check: AgreementCheck) -> None:
        """Watches over a model from now on. Another precision of it is not watched any more.

        Args:
            served: the model, whose precision has just been changed.
            check: the check of that precision.
        """
        check.reference.drop_partitions()  # its weights would stay in memory, although others serve
        watch = PrecisionWatch(served, check, self._undo)
        with self._guard:
            before, self._watches[served], is_running = self._watches.get(served), watch, self._run
        if before is not None:
            before.stop(wait_s=0.0)
        if is_running:  # without ``_guard``: whoever removes a model holds the lock that starting takes
            watch.start()
        with self._guard:
            is_wanted = self._run and self._watches.get(served) is watch
        if not is_wanted:
            watch.stop(wait_s=0.0)

    def remove(self, served: ServedModel) -> None:
        """Does not watch over a model any more. Does not wait for a comparison that is under way."""
        with self._guard:
            watch = self._watches.pop(served, None)
        if watch is not None:
            watch.stop(wait_s=0.0)

    def start(self) -> None:
        """Begins to watch. May be called again after ``stop``."""
        with self._guard:
            watches = [] if self._run else list(self._watches.values())
            self._run = True
        for watch in watches:
            watch.start()

    def stop(self) -> None:
        """Ends all comparisons. The caller must not hold ``changing``, because a way back needs that lock."""
        with self._guard:
            was_running, self._run = self._run, False
            watches = list(self._watches.values()) if was_running else []
        for watch in watches:
            watch.stop()

    def _undo(self, watch: PrecisionWatch, reason: str) -> bool:
        """Gives a model its plan in fp32 again. Returns False if that must be tried again."""
        served, precision = watch.served, watch.check.other.precision.value
        name = served.instance.model.entry.name
        with self._changing:
            if self._watches.get(served) is not watch or served.instance.model is not watch.check.other:
                return True
            if served.is_contested:  # its settings may be a rival's, which nobody has chosen yet
                return False
            try:
                plan = self._plan_changer.rival_plan(served, watch.check.reference)
            except Exception as error:  # nobody would watch over the model any more
                if not served.undone:
                    served.undone = f"{precision} should be taken back, because {reason}, but cannot"
                    self._say(served.key, f"{name} should run in fp32 again, but cannot: {error_sentence(error)}")
                return False
            served.instance.model = watch.check.reference
            self._plan_changer.put_in_force(served, plan)
            served.undone = f"{precision} was taken back, because {reason}"
        self.remove(served)
        self._plan_changer.build_stacks()
        self._say(served.key, f"{name} runs in fp32 again, not in {precision}: {reason}.")
        return True
