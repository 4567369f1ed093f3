"""Another precision passes only if its detections surely agree with those in fp32."""

from __future__ import annotations

from itertools import repeat

import numpy as np
import pytest

pytest.importorskip("torch")
from two_stages import brightness

from split_infer_ros.images.encodings import BGR, Pixels
from split_infer_ros.models.agreement import Agreement
from split_infer_ros.models.detections import Detections
from split_infer_ros.server.improving import agreement_check
from split_infer_ros.server.improving.agreement_check import LOOKS, MAX_IMAGES, AgreementCheck
from split_infer_ros.split.model import SplitModel

SEEN = Detections(np.array([[0, 0, 10, 10]], np.float32), np.array([0.9], np.float32), np.array([0]))
OTHER = Detections(SEEN.boxes, SEEN.scores, SEEN.labels + 1)
IMAGE = Pixels(np.full((8, 8, 3), 100, np.uint8), BGR)


class Computed:
    """Stands in for two computations: the n-th image is seen alike if the n-th of ``alike`` is true, else not.

    None means that the image shows no object.
    """

    def __init__(self, alike: list[bool | None]) -> None:
        self.alike = iter(alike)
        self.split_points: list[str] = []

    def __call__(self, reference: SplitModel, other: SplitModel, split_point: str) -> Computed:
        self.split_points.append(split_point)
        return self

    def add_to(self, agreement: Agreement, image: Pixels) -> float | None:
        alike = next(self.alike)
        if alike is None:
            return None
        agreement.add(SEEN, SEEN if alike else OTHER)
        return 0.9


def judge(
    monkeypatch: pytest.MonkeyPatch, alike: list[bool | None], min_agreement: float = 0.95
) -> tuple[AgreementCheck, bool | None]:
    monkeypatch.setattr(agreement_check, "TwoPrecisions", Computed(alike))
    check = AgreementCheck(brightness(), brightness(), min_agreement)
    return check, check.run(lambda: IMAGE, "output")


def test_a_precision_that_sees_the_same_passes_after_64_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    check, agrees = judge(monkeypatch, [True] * LOOKS[0])
    assert agrees is check.has_passed is True
    assert str(check) == "top-1 1.000, at least 0.954, over 64 frames"
    assert not check.scenes.are_left_by_brightness(100.0)


def test_a_precision_that_sees_other_things_fails_after_64_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    check, agrees = judge(monkeypatch, [True, False] * (LOOKS[0] // 2))
    assert (agrees, check.has_passed) == (False, False)
    assert str(check).startswith("top-1 0.500, at least 0.")


def test_where_the_bound_is_unsure_more_frames_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    alike: list[bool | None] = [False, *[True] * (LOOKS[1] - 1)]
    check, agrees = judge(monkeypatch, alike)
    assert agrees is True
    assert len(check.agreement) == LOOKS[1]


def test_who_never_becomes_sure_fails_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    period: list[bool | None] = [*[True] * 50, False]
    monkeypatch.setattr(agreement_check, "TwoPrecisions", Computed(period * 6))
    check = AgreementCheck(brightness(), brightness(), 0.979)
    found = [check.run(lambda: IMAGE, "output") for _ in range(2)]
    assert found == [None, False], "the second run goes on where the first one stopped"
    assert len(check.agreement) == LOOKS[-1]


def test_without_objects_there_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    check, agrees = judge(monkeypatch, [None] * MAX_IMAGES)
    assert agrees is None
    assert str(check) == "no frame showed an object"


def test_a_check_ends_early_without_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement_check, "TwoPrecisions", Computed([True] * 9))
    images = iter([IMAGE] * 9)
    check = AgreementCheck(brightness(), brightness(), 0.97)
    assert check.run(lambda: next(images, None), "output") is None
    assert len(check.agreement) == 9


def test_both_models_compute_each_image() -> None:
    """The score of an image is its brightness; black images have no score to tell apart."""
    check = AgreementCheck(brightness(), brightness().placed(brightness().device), 0.95)
    lights = repeat(Pixels(np.full((8, 8, 3), 200, np.uint8), BGR), LOOKS[0])
    assert check.run(lambda: next(lights, None), "output") is True
    assert check.agreement.value == 1.0
