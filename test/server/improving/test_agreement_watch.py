"""One frame in a hundred is judged, and one in five in new scenes; too little agreement is told."""

from __future__ import annotations

import numpy as np
import pytest

from split_infer_ros.models.detections import Detections
from split_infer_ros.server.improving.agreement_watch import LOOKS, MAX_OFTEN, OFTEN, REST, SELDOM, AgreementWatch
from split_infer_ros.server.improving.scenes import JudgedScenes

DAY, NIGHT, SCORE = 120.0, 20.0, 0.9
SEEN = Detections(np.array([[0, 0, 10, 10]], np.float32), np.array([SCORE], np.float32), np.array([0]))
MISSED = Detections.empty()


class Film:
    """Shows frames to a watch, as a camera does.

    Attributes:
        judged: the numbers of the judged frames.
        reasons: what the watch has said.
    """

    def __init__(self, min_agreement: float = 0.97) -> None:
        scenes = JudgedScenes()
        scenes.learn(DAY, SCORE)
        self.watch = AgreementWatch(classifies=False, min_agreement=min_agreement, scenes=scenes)
        self.judged: list[int] = []
        self.reasons: list[str] = []
        self._frames = 0

    def show(self, count: int, light: float, found: Detections | None = SEEN, score: float = SCORE) -> None:
        """Shows frames with one object, of which ``found`` is detected; None: frames without an object."""
        for _ in range(count // OFTEN):
            self._frames += OFTEN
            if not self.watch.wants(self._frames, light) or self.reasons:
                continue
            self.judged.append(self._frames)
            if found is not None:
                self.watch.agreement.add(SEEN, found)
            reason = self.watch.note(light, None if found is None else score)
            self.reasons += [reason] if reason else []


def test_in_known_scenes_one_frame_in_a_hundred_is_judged() -> None:
    film = Film()
    film.show(1000, DAY)
    assert film.judged == list(range(SELDOM, 1001, SELDOM))
    assert not film.watch.is_unsure


def test_at_night_one_frame_in_five_is_judged_until_enough_agreed() -> None:
    film = Film()
    film.show(500, DAY)
    film.show(1000, NIGHT)
    night = [frame for frame in film.judged if frame > 500]
    assert not film.watch.is_unsure
    assert np.diff(night[1 : LOOKS[0]]).tolist() == [OFTEN] * (LOOKS[0] - 2)
    assert len(night) < LOOKS[0] + 10, "then one in a hundred again"
    assert film.reasons == []


def test_scores_unlike_judged_ones_are_a_new_scene_too() -> None:
    film = Film()
    film.show(20 * SELDOM, DAY, score=0.5)
    assert len(film.judged) > 20


@pytest.mark.parametrize("light", [DAY, NIGHT])
def test_too_little_agreement_is_told_within_200_judged_or_2000_sent_frames_of_a_new_scene(light: float) -> None:
    film = Film()
    film.show(1000, DAY)
    before = len(film.judged)
    film.show(2000 if light == NIGHT else 100 * SELDOM, light, MISSED)
    assert len(film.judged) - before <= 200
    assert len(film.reasons) == 1
    assert film.reasons[0].startswith("its mAP with fp32's detections as the truth is ")
    assert film.reasons[0].endswith("judged frames, and 0.97 is needed")


def test_frames_of_the_day_do_not_hide_what_the_night_shows() -> None:
    film = Film()
    film.show(100 * SELDOM, DAY)
    film.show(2000, NIGHT, MISSED)
    assert "is 0.000, at most 0.000, in the last 32 judged frames" in film.reasons[0]


def test_an_empty_night_says_nothing_and_does_not_cost_much_for_long() -> None:
    film = Film()
    film.show(500, DAY)
    film.show(MAX_OFTEN * OFTEN + REST, NIGHT, None)
    night = [frame for frame in film.judged if frame > 500]
    assert MAX_OFTEN <= len(night) < MAX_OFTEN + REST // SELDOM + 10
    assert film.reasons == []
    film.show(500, NIGHT, MISSED)
    assert len(film.reasons) == 1, "once things appear, the night is still a new scene"


def test_agreement_at_the_bound_is_enough() -> None:
    film = Film(min_agreement=1.0)
    film.show(100 * SELDOM, DAY)
    assert film.reasons == []


def test_precisions_that_agree_well_enough_mostly_stay_for_hours() -> None:
    """One frame in 200 differs, and one in a hundred may. A camera of 30 Hz takes three hours for each film."""
    cat, dog = SEEN, Detections(SEEN.boxes, SEEN.scores, SEEN.labels + 1)
    undone = 0
    for seed in range(20):
        random = np.random.default_rng(seed)
        scenes = JudgedScenes()
        scenes.learn(DAY, SCORE)
        watch = AgreementWatch(classifies=True, min_agreement=0.99, scenes=scenes)
        reasons = []
        for _ in range(3000):
            watch.agreement.add(cat, cat if random.random() > 0.005 else dog)
            reasons.append(watch.note(DAY, SCORE))
        undone += any(reasons)
    assert undone <= 6
