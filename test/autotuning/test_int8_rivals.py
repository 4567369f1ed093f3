"""A model becomes faster in int8 with images of its own cameras, and is kept only if it wins."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino")
pytest.importorskip("onnx")

from onnx_files import network, ultralytics
from trial_runners import StandInRunner

from split_infer_ros.autotuning import int8_rivals
from split_infer_ros.autotuning.background_trials import MAX_PROCESSOR_S, BackgroundTrials
from split_infer_ros.autotuning.handed_arrays import keep_in_memory, taken
from split_infer_ros.autotuning.int8_rivals import Int8Rivals
from split_infer_ros.autotuning.spaces import QUANTISE, RIVAL, RIVALS, TURNS
from split_infer_ros.autotuning.trial_process import TrialOutcome
from split_infer_ros.engines.precision import Precision
from split_infer_ros.images.encodings import RGB, Pixels
from split_infer_ros.quantisation.float_graph import float_graph
from split_infer_ros.server.improving.rivals import Rival
from split_infer_ros.server.improving.turns import Verdict
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.quantised_file import quantised_path

SCOPES = ("all layers", "all layers but the last ones")
WON, LOST = Verdict(1.5, 1.4, 1.6), Verdict(0.9, 0.8, 1.0)


class Trials(StandInRunner):
    """Runs trials. The graph "in int8" is the one in float32.

    Attributes:
        images: the images of each calibration.
        scopes: the scope of each calibration.
        error: why a model cannot be quantised; None if it can.
        slower: how many times as long int8 takes.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.images: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
        self.scopes: list[int] = []
        self.error: str | None = None
        self.slower = 0.5
        self._descriptors: list[int] = []

    def close(self) -> None:
        super().close()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def run(self, stage: str, config: Mapping[str, Any], about: Mapping[str, Any], limit_s: float) -> TrialOutcome:
        if stage == QUANTISE:
            return self._quantise(about)
        if stage == RIVALS:
            return TrialOutcome((), None, {TURNS: {name: [self._cost(each)] for name, each in about[RIVALS].items()}})
        assert stage == RIVAL
        return TrialOutcome((self._cost(config),))

    def _cost(self, config: Mapping[str, Any]) -> float:
        return self.slower if config["precision"] == "int8" else 1.0

    def _quantise(self, about: Mapping[str, Any]) -> TrialOutcome:
        if self.error is not None:
            return TrialOutcome((), self.error)
        self.images.append(taken(about["images"]))
        self.scopes.append(about["scope"])
        data = float_graph(load_model(self.spec)).SerializeToString()
        descriptor, graph = keep_in_memory(np.frombuffer(data, np.uint8))
        self._descriptors.append(descriptor)
        return TrialOutcome((), None, {"graph": graph, "scope": SCOPES[about["scope"]], "scopes": len(SCOPES)})


class Camera:
    """Gives an image of another brightness at each call, and none after ``count`` images."""

    def __init__(self, count: int = 1000) -> None:
        self.count = count
        self.taken = 0

    def __call__(self) -> Pixels | None:
        if self.taken == self.count:
            return None
        self.taken += 1
        return Pixels(np.full((60, 80, 3), self.taken, np.uint8), RGB)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    path = tmp_path_factory.mktemp("models") / "detector.onnx"
    metadata = ultralytics(imgsz="[32, 32]", names="{0: 'a', 1: 'b', 2: 'c'}")
    path.write_bytes(network(21, 7, metadata=metadata, transposed=True).SerializeToString())
    return ModelSpec(str(path), device="cpu")


@pytest.fixture
def trials(spec: ModelSpec) -> Iterator[Trials]:
    found = Trials(spec)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def opened(trials: Trials) -> Int8Rivals:
    return Int8Rivals(BackgroundTrials(trials.spec, open_runner=trials.open))


def proposed(rivals: Int8Rivals, trials: Trials, camera: Camera | None = None) -> Rival | None:
    return rivals.next(load_model(trials.spec), "output", lambda: False, camera or Camera())


def is_kept(trials: Trials) -> bool:
    return quantised_path(load_model(trials.spec).network).is_file()


def test_the_model_is_quantised_with_images_of_the_camera(trials: Trials) -> None:
    camera = Camera()
    rival = proposed(opened(trials), trials, camera)
    assert rival is not None
    assert (rival.name, rival.model.precision, rival.min_agreement) == ("int8 of all layers", Precision.INT8, 0.97)
    (images,) = trials.images
    assert len(images) == camera.taken == int8_rivals.NUM_IMAGES
    assert images.shape[1:] == (*rival.model.image_shape[1:], 3)
    middle = images[:, images.shape[1] // 2, images.shape[2] // 2]
    np.testing.assert_array_equal(middle, np.arange(1, len(images) + 1, dtype=np.uint8)[:, None].repeat(3, 1))


def test_images_take_a_limited_amount_of_memory(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    height, width = load_model(trials.spec).image_shape[1:]
    monkeypatch.setattr(int8_rivals, "MAX_IMAGE_BYTES", 5 * height * width * 3 + 1)
    assert proposed(opened(trials), trials) is not None
    assert len(trials.images[0]) == 5


def test_a_winner_is_kept_and_needs_no_calibration_later(trials: Trials) -> None:
    rivals = opened(trials)
    assert proposed(rivals, trials) is not None
    assert not is_kept(trials), "it is not judged yet"
    rivals.settle(WON)
    assert is_kept(trials)
    assert proposed(rivals, trials) is None
    rivals.close()
    later = proposed(opened(trials), trials)
    assert later is not None
    assert (later.name, later.model.precision) == ("int8", Precision.INT8)
    assert len(trials.images) == 1


def test_one_that_is_taken_back_is_not_kept_and_fewer_layers_are_not_tried(trials: Trials) -> None:
    rivals = opened(trials)
    assert proposed(rivals, trials) is not None
    rivals.settle(LOST)
    assert proposed(rivals, trials) is None
    assert not is_kept(trials)
    assert (
        rivals.summary
        == "int8 of all layers is 0.90 times as fast (0.80 to 1.00) on live frames; 0 s of processor time"
    )


def test_one_that_does_not_agree_is_followed_by_one_with_fewer_layers_in_int8(trials: Trials) -> None:
    rivals = opened(trials)
    for scope in SCOPES:
        rival = proposed(rivals, trials)
        assert rival is not None
        assert rival.name == f"int8 of {scope}"
        rivals.refuse("its detections do not agree.")
    assert proposed(rivals, trials) is None
    assert trials.scopes == [0, 1]
    assert not is_kept(trials)


def test_a_proposal_waits_for_its_judgement(trials: Trials) -> None:
    rivals = opened(trials)
    assert proposed(rivals, trials) is proposed(rivals, trials)
    assert len(trials.images) == 1


def test_a_search_that_ends_while_images_are_taken_begins_anew(trials: Trials) -> None:
    rivals, over = opened(trials), [False]

    def last() -> Pixels | None:
        over[0] = True
        return None

    assert rivals.next(load_model(trials.spec), "output", lambda: over[0], last) is None
    assert rivals.summary == ""
    assert proposed(rivals, trials) is not None


def test_int8_that_is_clearly_slower_is_given_up(trials: Trials) -> None:
    trials.slower = 2.0
    rivals = opened(trials)
    assert proposed(rivals, trials) is None
    assert rivals.summary.startswith("int8 is not used (")
    assert "in a trial" in rivals.summary
    assert len(trials.images) == 1


def test_a_model_that_cannot_be_quantised_says_why(trials: Trials) -> None:
    trials.error = "quantising needs the Python package nncf."
    rivals = opened(trials)
    assert proposed(rivals, trials) is None
    assert rivals.summary.startswith("int8 is not used (quantising needs the Python package nncf)")


def test_trials_that_took_too_long_end_the_search(trials: Trials) -> None:
    rivals = opened(trials)
    assert proposed(rivals, trials) is not None
    rivals.refuse("its detections do not agree.")
    trials.processor_s = MAX_PROCESSOR_S + 1
    assert proposed(rivals, trials) is None
    assert "int8 is not used (the trials took too much processor time)" in rivals.summary
