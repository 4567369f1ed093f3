"""Another precision serves only once its detections agree on live frames, and only while they do."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("torch")
from brightness_models import LONG_S
from proposed_rivals import Proposed
from tenant_server import until
from two_stages import Stages, Start, brightness

from split_infer_ros.engines.execution_config import Convolutions, ExecutionConfig
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.agreement import Agreement
from split_infer_ros.models.detections import Detections
from split_infer_ros.runtime.device import CPU
from split_infer_ros.server.improving import (
    agreement_check,
    agreement_watch,
    improver,
    live_contest,
    live_frames,
    precision_watch,
    search,
)
from split_infer_ros.server.improving.turns import Turns, Verdict
from split_infer_ros.server.plan_changer import PlanChanger
from split_infer_ros.server.settings import DropPolicy
from split_infer_ros.split.model import SplitModel

SEEN = Detections(np.array([[0, 0, 4, 4]], np.float32), np.array([0.9], np.float32), np.array([0]))
OTHER = Detections(SEEN.boxes, SEEN.scores, SEEN.labels + 1)


class Eyes:
    """Stands in for two computations of a frame, which see the same while ``agree`` is set.

    Attributes:
        agree: whether they see the same.
        split_points: where the model was split, each time the computations were made.
        fails: whether computing fails.
    """

    def __init__(self) -> None:
        self.agree, self.fails = True, False
        self.split_points: list[str] = []

    def __call__(self, reference: SplitModel, other: SplitModel, split_point: str) -> Eyes:
        assert reference is brightness()
        assert other is not reference
        self.split_point = split_point
        self.split_points.append(split_point)
        return self

    def add_to(self, agreement: Agreement, image: Pixels) -> float | None:
        if self.fails:
            raise RuntimeError("The device is gone.")
        agreement.add(SEEN, SEEN if self.agree else OTHER)
        return 0.9


class Won(Turns):
    """The rival wins as soon as it had a turn."""

    @property
    def verdict(self) -> Verdict | None:
        return Verdict(1.5, 1.4, 1.6)


class Film:
    """Both stages with a rival of another precision, and a camera that sends until ``close``."""

    def __init__(self, start: Start, eyes: Eyes) -> None:
        self.eyes = eyes
        self.rival = brightness().placed(CPU, ExecutionConfig(convolutions=Convolutions.CONTIGUOUS))
        self.rivals = Proposed(self.rival, min_agreement=0.4)
        self.stages: Stages = start(rivals=self.rivals, drop_policy=DropPolicy.BLOCK)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def serving(self) -> SplitModel:
        return self.stages.backbone.plan.model

    def close(self) -> None:
        self._ends.set()
        self._thread.join(LONG_S)
        self.stages.settle()
        self.stages.check_results()

    def _run(self) -> None:
        while not self._ends.is_set():
            if self.stages.backbone.is_open and self.stages.backbone.intake.wait_for_room(0.1):
                self.stages.send(100)


@pytest.fixture
def eyes(monkeypatch: pytest.MonkeyPatch) -> Eyes:
    found = Eyes()
    for module in (agreement_check, precision_watch):
        monkeypatch.setattr(module, "TwoPrecisions", found)
    monkeypatch.setattr(agreement_check, "LOOKS", (4, 8))
    monkeypatch.setattr(agreement_watch, "SELDOM", 10)
    monkeypatch.setattr(live_frames, "SPACING_S", 0.0)
    monkeypatch.setattr(live_contest, "Turns", Won)
    monkeypatch.setattr("split_infer_ros.server.improving.turns.TURN_S", 0.01)
    monkeypatch.setattr(search, "MIN_BATCHES", 2)
    monkeypatch.setattr(improver, "RETRY_S", 0.01)
    return found


@pytest.fixture
def film(start: Start, eyes: Eyes) -> Iterator[Film]:
    found = Film(start, eyes)
    yield found
    found.close()


def test_a_precision_that_agrees_serves(film: Film) -> None:
    until(lambda: bool(film.rivals.verdicts))
    until(lambda: film.serving is film.rival)
    assert film.rivals.refusals == []
    assert film.stages.backbone.instance.model is film.rival


def test_a_precision_that_does_not_agree_never_serves(start: Start, eyes: Eyes) -> None:
    eyes.agree = False
    film = Film(start, eyes)
    until(lambda: film.rivals.is_done)
    assert film.rivals.refusals == [
        "its detections do not agree with those in fp32: top-1 0.000, at least 0.000, over 4 frames"
    ]
    assert film.rivals.verdicts == []
    assert film.serving is brightness()
    film.close()


def test_a_precision_that_agrees_no_longer_gives_way_to_fp32_and_says_so(film: Film) -> None:
    until(lambda: any("from now on" in line for line in film.stages.said))
    film.eyes.agree = False
    until(lambda: len(film.stages.said) == 2)
    assert film.serving is film.stages.backbone.instance.model is brightness()
    assert film.stages.said[1].startswith(
        "brightness runs in fp32 again, not in fp32: its top-1 with fp32's detections as the truth is 0."
    ), "the rival of this test computes in fp32, too"
    improvement = film.stages.backbone.report(0.0).improvement
    assert improvement.startswith("fp32 was taken back, because its top-1 with ")
    assert improvement.endswith("; tried")
    judged = len(film.eyes.split_points)
    film.eyes.agree = True
    film.stages.settle()
    assert len(film.eyes.split_points) == judged
    assert film.serving is brightness()


def test_a_fault_of_the_comparison_gives_way_to_fp32(film: Film) -> None:
    until(lambda: any("from now on" in line for line in film.stages.said))
    film.eyes.fails = True
    until(lambda: film.serving is brightness())
    until(lambda: len(film.stages.said) == 2)
    assert film.stages.said[1].endswith("it cannot be compared with fp32 any more (RuntimeError: The device is gone).")


def test_the_way_back_is_tried_again_if_memory_is_short(film: Film, monkeypatch: pytest.MonkeyPatch) -> None:
    until(lambda: any("from now on" in line for line in film.stages.said))
    make, refused = PlanChanger.rival_plan, threading.Event()

    def refuse_once(*given: object) -> object:
        if refused.is_set():
            return make(*given)  # type: ignore[arg-type]
        refused.set()
        raise ConfigurationError("memory is short.")

    monkeypatch.setattr(PlanChanger, "rival_plan", refuse_once)
    film.eyes.agree = False
    until(lambda: film.serving is brightness())
    assert film.stages.said[1] == "brightness should run in fp32 again, but cannot: memory is short."


def test_a_stopped_stage_is_watched_again_after_its_start(film: Film) -> None:
    until(lambda: any("from now on" in line for line in film.stages.said))
    film.stages.backbone.stop(LONG_S)
    film.eyes.agree = False
    film.stages.backbone.start()
    until(lambda: film.serving is brightness())


def test_frames_are_compared_where_the_model_is_split(film: Film) -> None:
    until(lambda: any("from now on" in line for line in film.stages.said))
    until(lambda: len(film.eyes.split_points) > 1)
    film.stages.backbone.configure(film.stages.backbone.settings.__class__(split_point="parts.1"))
    until(lambda: film.eyes.split_points[-1] == "parts.1")
    assert film.serving is film.rival
