"""Tries rivals of the served models, one after the other, while frames flow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError, error_sentence
from split_infer_ros.runtime.num_threads import use_one_thread
from split_infer_ros.runtime.priority import BACKBONE, give_way
from split_infer_ros.server.improving.alone import RETRY_S, alone
from split_infer_ros.server.improving.heat_watch import HeatWatch
from split_infer_ros.server.improving.live_contest import LiveContest
from split_infer_ros.server.improving.live_frames import LiveFrames
from split_infer_ros.server.improving.rivals import NoImagesError, Rival, Rivals
from split_infer_ros.server.improving.search import Search
from split_infer_ros.server.improving.watches import Watches
from split_infer_ros.server.plan_changer import PlanChanger
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.split.model import SplitModel
from split_infer_ros.telemetry.heat import Heat, Processor

GOES_ON = "the search goes on"  # follows what a model's search has found so far
JOIN_S = 0.1  # how often a trial is ended, because another one may have begun meanwhile


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
        self._watches = Watches(plan_changer, changing, say)
        self._heat_watch = HeatWatch(self._bound_c, self._note_heat)
        self._told: dict[ServedModel, Processor | None] = {}  # the hot processor that a model's rivals know
        self._rivals: dict[ServedModel, Rivals] = {}
        self._searches: dict[ServedModel, Search] = {}
        self._ending = threading.Event()
        self._ending.set()  # until ``start``
        self._guard = threading.Lock()  # guards the thread's start and end, so that a model that is added is improved
        self._thread: threading.Thread | None = None

    def add(self, served: ServedModel, rivals: Rivals) -> None:
        """Improves a model from now on, as soon as it has served some batches."""
        with self._guard:
            self._rivals[served] = rivals
            self._search(served)

    def search_again(self) -> None:
        """Searches for rivals of all models once more, because settings have changed."""
        with self._guard:
            for served in [served for served in list(self._rivals) if served not in self._searches]:
                self._search(served)
            self._begin()  # there may be a temperature bound now

    def remove(self, served: ServedModel) -> None:
        """Tries no further rivals of a model, ends a trial that is under way, and does not watch over it any more."""
        self._watches.remove(served)
        self._end(served)
        self._told.pop(served, None)

    def _end(self, served: ServedModel) -> None:
        """Tries no further rivals of a model, and ends a trial that is under way."""
        self._rivals.pop(served, None)
        served.heat = ""
        self._end_search(served)

    def _search(self, served: ServedModel) -> None:
        """Begins a search for rivals of a model (``_guard`` held)."""
        if (rivals := self._rivals.get(served)) is None:  # it was removed meanwhile
            return
        search = Search(rivals, known=served.improvement)
        served.observe(search.observe)
        self._searches[served] = search
        self._begin()

    def _end_search(self, served: ServedModel) -> None:
        search = self._searches.get(served)
        if search is not None:
            served.improvement = search.rivals.summary  # before another search may begin, which reads it
            self._searches.pop(served, None)
            served.ignore(search.observe)
            search.rivals.interrupt()

    def start(self) -> None:
        """Begins to improve models. May be called again after ``stop``."""
        with self._guard:
            self._ending.clear()
            self._begin()
        self._watches.start()

    def stop(self) -> None:
        """Ends the thread, with a trial or a contest that is under way.

        The caller must not hold ``changing``, because a contest that ends needs that lock.
        """
        self._watches.stop()
        with self._guard:
            thread = self._thread
            self._ending.set()
        self._heat_watch.stop()
        while thread is not None and thread.is_alive():
            for search in list(self._searches.values()):
                search.rivals.interrupt()
            thread.join(JOIN_S)

    def _begin(self) -> None:
        """Starts the threads if there is something to do (``_guard`` held)."""
        if self._ending.is_set():
            return
        self._heat_watch.start()
        if self._searches and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="improver", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        use_one_thread()
        give_way(BACKBONE)
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

    def _is_ready(self, served: ServedModel, search: Search) -> bool:
        return search.has_frames and not self._is_over(served) and self._plan_changer.may_contest(served)

    def _improve(self, served: ServedModel, search: Search) -> None:
        """Tries the rivals of one model. Its search is over, unless a contest had to end early."""
        try:
            with alone(partial(self._is_over, served), self._ending):
                if self._is_ready(served, search):  # waiting for another node may have taken minutes
                    self._try_all(served, search)
        except NoImagesError:
            search.rest()
        except Exception as error:  # the other models can still be improved
            if not self._is_over(served):
                self._end(served)
                name = served.instance.model.entry.name
                self._say(served.key, f"{name} is not improved further: {error_sentence(error)}.")
        finally:
            search.rivals.close()

    def _try_all(self, served: ServedModel, search: Search) -> None:
        """Tries a model's rivals, one after the other. Ends the search if none is left."""
        rivals, hot = search.rivals, self._hot_for(served)
        if hot is not self._told.get(served):
            rivals.again(hot)
            self._told[served] = hot

        def over() -> bool:
            return self._is_over(served) or self._hot_for(served) is not hot

        while not over():
            model = served.instance.model
            served.improvement = "; ".join(filter(None, (rivals.summary, GOES_ON)))
            with LiveFrames(served, over) as frames:
                rival = rivals.next(model, served.plan.split_point.name, over, frames.take)
            is_settled = rival is not None and self._try(served, rival, search, model, over)
            if rival is None:
                if not over():
                    self._finish(served)
                    if self._hot_for(served) is not hot:  # it has changed while the search was still known
                        self.search_again()
                return
            if not is_settled:
                search.rest()
                return
            search.go_on()

    def _finish(self, served: ServedModel) -> None:
        """Ends the search of a model, and says what it has found."""
        search = self._searches.get(served)
        self._end_search(served)
        if search is not None and served.improvement != search.known:
            model = served.instance.model
            where = model.execution_config.engine_text
            where += "" if model.precision is Precision.FP32 else f" in {model.precision.value}"
            self._say(served.key, f"{model.entry.name} runs on {where} from now on: {served.improvement}.")

    def _try(
        self, served: ServedModel, rival: Rival, search: Search, model: SplitModel, over: Callable[[], bool]
    ) -> bool:
        """Lets a rival of ``model`` take turns with it, if its detections agree. Returns False if that ended early."""
        if model.precision is Precision.FP32:
            search.reference = model
        try:
            agrees = search.agrees(served, rival, over)
            if not agrees:
                return agrees is not None
            with self._changing:
                if served.instance.model is not model or not self._plan_changer.may_contest(served):
                    return False
                contest = LiveContest(served, rival, self._plan_changer, self._changing, over)
            verdict = contest.run()
        except ConfigurationError as error:
            search.rivals.refuse(str(error))
            return True
        if verdict is None:
            return False
        if rival.min_agreement is not None and verdict.rival_wins:
            with self._changing:  # nobody removes the model meanwhile
                if served.instance.model is rival.model and not self._is_over(served):
                    self._watches.add(served, search.checks[rival.model])
        search.rivals.settle(verdict)
        return True

    def _bound_c(self) -> float:
        """Returns the highest temperature that is not hot, in C; 0: there is no bound, or nothing is improved."""
        return max((served.plan.settings.max_temperature_c for served in list(self._rivals)), default=0.0)

    def _hot_for(self, served: ServedModel) -> Processor | None:
        return self._heat_watch.heat.hot_for(served.instance.model.device.type)

    def _note_heat(self, before: Heat, heat: Heat) -> None:
        """Tells the users of all models how hot it is. Searches again if a processor has become hot or has cooled."""
        with self._guard:
            models = list(self._rivals)
        for served in models:
            served.heat = heat.text(served.instance.model.device.type) if served in self._rivals else ""
            if heat.hot is not before.hot:
                self._say(served.key, f"{served.instance.model.entry.name}: {served.heat or 'no temperature bound'}.")
        if heat.hot is not before.hot:
            for served, search in list(self._searches.items()):
                kind = served.instance.model.device.type
                if heat.hot_for(kind) is not before.hot_for(kind):  # a trial of another processor goes on
                    search.hurry()
                    search.rivals.interrupt()
            self.search_again()

    def _is_over(self, served: ServedModel) -> bool:
        return self._ending.is_set() or served not in self._searches
