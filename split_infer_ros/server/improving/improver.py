"""Tries rivals of the served models, one after the other, while frames flow."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from split_infer_ros.errors import ConfigurationError, error_sentence
from split_infer_ros.runtime.cache import cache_folder
from split_infer_ros.runtime.num_threads import use_one_thread
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.improving.live_contest import LiveContest, observed_by
from split_infer_ros.server.improving.rivals import Rival, Rivals
from split_infer_ros.server.plan_changer import PlanChanger
from split_infer_ros.server.served_model import ServedModel

MIN_BATCHES = 20  # a model serves so many batches before its first rival is tried
RETRY_S = 0.5  # how often it is checked whether another node is done
JOIN_S = 0.1  # how often a trial is ended, because another one may have begun meanwhile


class Improver:
    """Improves models, one after the other, on a thread of its own.

    Two nodes of one machine improve one after the other. A fault of a trial costs the trial: the model goes on as it
    was.

    Args:
        plan_changer: makes plans, and puts them in force.
        changing: the server's lock, which is held while plans change.
        say: called with a model's key and a sentence for the user.
    """

    def __init__(self, plan_changer: PlanChanger, changing: threading.RLock, say: Callable[[str, str], object]) -> None:
        self._plan_changer = plan_changer
        self._changing = changing
        self._say = say
        self._models: dict[ServedModel, Rivals] = {}
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, served: ServedModel, rivals: Rivals) -> None:
        """Improves a model from now on, as soon as it has served some batches."""
        self._models[served] = rivals

    def remove(self, served: ServedModel) -> None:
        """Tries no further rivals of a model, and ends a trial that is under way."""
        rivals = self._models.pop(served, None)
        if rivals is not None:
            rivals.interrupt()

    def start(self) -> None:
        """Starts the thread, if a model may have rivals. May be called again after ``stop``."""
        if self._models and self._thread is None:
            self._ending.clear()
            self._thread = threading.Thread(target=self._run, name="improver", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread, with a trial or a contest that is under way.

        The caller must not hold ``changing``, because a contest that ends needs that lock.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._ending.set()
        while thread.is_alive():
            for rivals in list(self._models.values()):
                rivals.interrupt()
            thread.join(JOIN_S)

    def _run(self) -> None:
        use_one_thread()
        for served, rivals in list(self._models.items()):
            try:
                self._improve(served, rivals)
            except Exception as error:  # the other models can still be improved
                if self._is_over(served):
                    continue
                name = served.instance.model.entry.name
                self._say(served.key, f"{name} is not improved further: {error_sentence(error)}.")

    def _improve(self, served: ServedModel, rivals: Rivals) -> None:
        """Tries the rivals of one model."""
        if not self._has_served(served):
            return
        with self._alone():
            while not self._is_over(served):
                batch_size = served.plan.settings.batch_size
                rival = rivals.next(served.instance.model, batch_size, lambda: self._is_over(served))
                if rival is not None:
                    self._try(served, rival, rivals)
                served.improvement = rivals.summary
                if rival is None:
                    break
        if self._is_over(served):
            return
        del self._models[served]  # it is not improved again after a stop
        if served.improvement:
            name, engine = served.instance.model.entry.name, served.instance.model.execution_config.engine_text
            self._say(served.key, f"{name} runs on {engine} from now on: {served.improvement}.")

    def _try(self, served: ServedModel, rival: Rival, rivals: Rivals) -> None:
        """Lets a rival take turns with the plan in force."""
        try:
            contest = LiveContest(
                served, rival.model, self._plan_changer, self._changing, lambda: self._is_over(served)
            )
        except ConfigurationError as error:
            rivals.refuse(str(error))
            return
        verdict = contest.run()
        if verdict is not None:
            rivals.settle(verdict)

    def _has_served(self, served: ServedModel) -> bool:
        """Waits until the model has served some batches. Returns False if it ends before."""
        left = threading.Semaphore(0)

        def observe(batch: Batch) -> None:
            left.release()

        with observed_by(served, observe):
            count = 0
            while count < MIN_BATCHES and not self._is_over(served):
                count += left.acquire(timeout=RETRY_S)
        return not self._is_over(served)

    def _is_over(self, served: ServedModel) -> bool:
        return self._ending.is_set() or served not in self._models

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Waits until no other node of this machine improves a model, and keeps others waiting during the block."""
        path: Path = cache_folder() / "improving.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            while not self._ending.is_set():
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self._ending.wait(RETRY_S)
            yield
