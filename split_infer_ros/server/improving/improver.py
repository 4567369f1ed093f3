"""Tries rivals of the served models, one after the other, while frames flow."""

from __future__ import annotations

import fcntl
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from split_infer_ros.errors import ConfigurationError, error_sentence
from split_infer_ros.runtime.cache import cache_folder
from split_infer_ros.runtime.num_threads import use_one_thread
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.improving.live_contest import LiveContest
from split_infer_ros.server.improving.rivals import Rival, Rivals
from split_infer_ros.server.plan_changer import PlanChanger
from split_infer_ros.server.served_model import ServedModel

MIN_BATCHES = 20  # a model serves so many batches before each search for a rival
RECENT_S = 5.0  # the last one may be so many seconds old, because rivals need frames
RETRY_S = 0.5  # how often it is checked whether a search can begin
JOIN_S = 0.1  # how often a trial is ended, because another one may have begun meanwhile


@dataclass(slots=True, eq=False)
class _Search:
    """The search for a faster engine of one model.

    Attributes:
        rivals: proposes the engines.
        batches: how many batches the model has served since it was added, or since a contest ended early.
        last: when the last batch was over, in seconds of the steady clock.
    """

    rivals: Rivals
    batches: int = 0
    last: float = -math.inf

    def observe(self, batch: Batch) -> None:
        """Counts a batch (server's lock held)."""
        self.batches += 1
        self.last = batch.timeline.delivered

    @property
    def has_frames(self) -> bool:
        """Whether enough batches were served, the last one a short time ago."""
        return self.batches >= MIN_BATCHES and time.monotonic() - self.last < RECENT_S


class Improver:
    """Improves models, one after the other, on a thread of its own.

    A model's turn comes once it has served some batches, so a camera that sends nothing keeps no other model waiting.
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
        self._searches: dict[ServedModel, _Search] = {}
        self._ending = threading.Event()
        self._ending.set()  # until ``start``
        self._guard = threading.Lock()  # guards the thread's start and end, so that a model that is added is improved
        self._thread: threading.Thread | None = None

    def add(self, served: ServedModel, rivals: Rivals) -> None:
        """Improves a model from now on, as soon as it has served some batches."""
        search = _Search(rivals)
        served.observers = (*served.observers, search.observe)
        with self._guard:
            self._searches[served] = search
            self._begin()

    def remove(self, served: ServedModel) -> None:
        """Tries no further rivals of a model, and ends a trial that is under way."""
        search = self._searches.pop(served, None)
        if search is not None:
            served.observers = tuple(observe for observe in served.observers if observe != search.observe)
            search.rivals.interrupt()

    def start(self) -> None:
        """Begins to improve models. May be called again after ``stop``."""
        with self._guard:
            self._ending.clear()
            self._begin()

    def stop(self) -> None:
        """Ends the thread, with a trial or a contest that is under way.

        The caller must not hold ``changing``, because a contest that ends needs that lock.
        """
        with self._guard:
            thread = self._thread
            self._ending.set()
        while thread is not None and thread.is_alive():
            for search in list(self._searches.values()):
                search.rivals.interrupt()
            thread.join(JOIN_S)

    def _begin(self) -> None:
        """Starts the thread if there is something to do (``_guard`` held)."""
        if self._searches and self._thread is None and not self._ending.is_set():
            self._thread = threading.Thread(target=self._run, name="improver", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        use_one_thread()
        while self._goes_on():
            for served, search in list(self._searches.items()):
                if self._is_ready(served, search):
                    self._improve(served, search)
            self._ending.wait(RETRY_S)

    def _goes_on(self) -> bool:
        """Returns whether the thread goes on. If not, another one may be started."""
        with self._guard:
            if self._searches and not self._ending.is_set():
                return True
            self._thread = None
            return False

    def _is_ready(self, served: ServedModel, search: _Search) -> bool:
        return search.has_frames and not self._is_over(served) and self._plan_changer.may_replace_engine(served)

    def _improve(self, served: ServedModel, search: _Search) -> None:
        """Tries the rivals of one model. Its search is over, unless a contest had to end early."""
        try:
            with self._alone(served):
                if self._is_ready(served, search):  # waiting for another node may have taken minutes
                    self._try_all(served, search)
        except Exception as error:  # the other models can still be improved
            if not self._is_over(served):
                self.remove(served)
                name = served.instance.model.entry.name
                self._say(served.key, f"{name} is not improved further: {error_sentence(error)}.")
        finally:
            search.rivals.close()

    def _try_all(self, served: ServedModel, search: _Search) -> None:
        """Tries a model's rivals, one after the other. Ends the search if none is left."""
        rivals = search.rivals
        while not self._is_over(served):
            rival = rivals.next(served.instance.model, served.plan.split_point.name, lambda: self._is_over(served))
            is_settled = rival is not None and self._try(served, rival, rivals)
            served.improvement = rivals.summary
            if rival is None:
                if not self._is_over(served):
                    self._finish(served)
                return
            if not is_settled:
                search.batches = 0
                return

    def _finish(self, served: ServedModel) -> None:
        """Ends the search of a model, and says what it has found."""
        self.remove(served)
        if served.improvement:
            model = served.instance.model
            name, engine = model.entry.name, model.execution_config.engine_text
            self._say(served.key, f"{name} runs on {engine} from now on: {served.improvement}.")

    def _try(self, served: ServedModel, rival: Rival, rivals: Rivals) -> bool:
        """Lets a rival take turns with the plan in force. Returns False if the contest ended early."""
        if not self._plan_changer.may_replace_engine(served):  # the trial took a while
            return False
        try:
            contest = LiveContest(
                served, rival.model, self._plan_changer, self._changing, lambda: self._is_over(served)
            )
            verdict = contest.run()
        except ConfigurationError as error:
            rivals.refuse(str(error))
            return True
        if verdict is not None:
            rivals.settle(verdict)
        return verdict is not None

    def _is_over(self, served: ServedModel) -> bool:
        return self._ending.is_set() or served not in self._searches

    @contextmanager
    def _alone(self, served: ServedModel) -> Iterator[None]:
        """Waits until no other node of this machine improves a model, and keeps others waiting during the block.

        If the search is over before, the block runs without waiting further.
        """
        path: Path = cache_folder() / "improving.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            while not self._is_over(served):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self._ending.wait(RETRY_S)
            yield
