"""Images run through a pipeline in this process: results in order, bounded memory, errors that are raised."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from brightness_models import BrightModel, Brightness
from numpy.typing import NDArray

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.head_stage import HeadStage
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.sources import draw_scene
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.torch_network import TorchNetwork

SETTINGS = StageSettings(split_point="parts.0", batch_size=2, batch_timeout_s=0.002, drop_policy=DropPolicy.BLOCK)
MAX_IN_MEMORY = 2 * (SETTINGS.pool_slots + 3)  # slots, the next batch, and one on its way


@pytest.fixture
def model() -> SplitModel:
    """A model whose score is the brightness of the image."""
    return SplitModel(TorchNetwork(BrightModel("bright").entry, Brightness(1)))


def image(value: int, height: int = 4, width: int = 4) -> NDArray[np.uint8]:
    return np.full((height, width, 3), value, np.uint8)


def brightness_of(result) -> int:
    return round(result.detections.scores.item() * 255)


def test_results_come_in_order_one_an_image(model: SplitModel) -> None:
    values = [(11 * index) % 250 for index in range(25)]
    with LocalPipeline(model, SETTINGS) as pipeline:
        found = list(pipeline.run(map(image, values)))
        assert [result.index for result in found] == list(range(25))
        assert [brightness_of(result) for result in found] == values
        again = list(pipeline.run(map(image, values[:3])))
        assert [(result.index, brightness_of(result)) for result in again] == list(enumerate(values[:3]))


def test_no_images_give_no_results(model: SplitModel) -> None:
    with LocalPipeline(model, SETTINGS) as pipeline:
        assert list(pipeline.run([])) == []


def test_endless_images_take_bounded_memory(model: SplitModel) -> None:
    num_taken = 0

    def endless() -> Iterator[NDArray[np.uint8]]:
        nonlocal num_taken
        for num_taken in itertools.count(1):
            yield image(num_taken % 250)

    with LocalPipeline(model, SETTINGS) as pipeline:
        for result in itertools.islice(pipeline.run(endless()), 100):
            assert num_taken - result.index <= MAX_IN_MEMORY
            assert brightness_of(result) == (result.index + 1) % 250


def test_encoding_says_which_channel_is_red() -> None:
    settings = StageSettings(split_point="neck", drop_policy=DropPolicy.BLOCK)
    scene = draw_scene(seed=1, index=0).image
    with LocalPipeline(load_model(ModelSpec("shapes", device="cpu")), settings) as pipeline:
        (rgb,) = pipeline.run([scene])
        (bgr,) = pipeline.run([scene[:, :, ::-1]], encoding="bgr8")
    assert len(rgb.detections) > 0
    assert np.array_equal(rgb.detections.boxes, bgr.detections.boxes)
    assert np.array_equal(rgb.detections.scores, bgr.detections.scores)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
    ],
)
def test_array_that_is_no_image_is_refused(model: SplitModel, wrong: NDArray[np.uint8]) -> None:
    with (
        LocalPipeline(model, SETTINGS) as pipeline,
        pytest.raises(ConfigurationError, match=r"Image 1 is .*NumPy array of uint8, \(height, width, 3\)"),
    ):
        list(pipeline.run([image(7), wrong]))


def test_read_only_image_is_taken(model: SplitModel) -> None:
    frozen = image(9)
    frozen.flags.writeable = False
    with LocalPipeline(model, SETTINGS) as pipeline:
        assert [brightness_of(result) for result in pipeline.run([frozen])] == [9]


def test_run_that_cannot_keep_every_image_is_refused(model: SplitModel) -> None:
    pipeline = LocalPipeline(model, replace(SETTINGS, drop_policy=DropPolicy.LATEST))
    with pipeline, pytest.raises(ConfigurationError, match=r"drop_policy 'latest'.*takes 'block'"):
        pipeline.run([image(1)])


def test_unknown_encoding_is_refused(model: SplitModel) -> None:
    pipeline = LocalPipeline(model, SETTINGS)
    with pipeline, pytest.raises(ConfigurationError, match=r"Encoding 'grb8' is unknown.*rgb8, bgr8"):
        pipeline.run([image(1)], encoding="grb8")


def test_second_run_waits_for_the_first_to_end(model: SplitModel) -> None:
    with LocalPipeline(model, SETTINGS) as pipeline:
        results = pipeline.run(map(image, itertools.cycle(range(200))))
        assert next(results).index == 0
        with pytest.raises(ConfigurationError, match="in another run"):
            pipeline.run([image(1)])
        results.close()  # type: ignore[attr-defined]
        assert [(result.index, brightness_of(result)) for result in pipeline.run([image(5)])] == [(0, 5)]


def test_error_of_a_batch_is_raised(model: SplitModel) -> None:
    def fail(origin: Origin, detections: object) -> None:
        raise ValueError("the reader failed")

    with LocalPipeline(model, SETTINGS, fail) as pipeline, pytest.raises(ValueError, match="the reader failed"):
        list(pipeline.run(map(image, range(20))))


def test_pipeline_that_cannot_start_leaves_no_thread(model: SplitModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(stage: HeadStage, *_: object) -> None:
        raise ConfigurationError("No head for parts.0.")

    pipeline = LocalPipeline(model, SETTINGS)
    before = set(threading.enumerate())
    monkeypatch.setattr(HeadStage, "prepare", refuse)
    with pytest.raises(ConfigurationError, match=r"No head for parts\.0"), pipeline:
        pass
    assert set(threading.enumerate()) <= before


def test_two_runs_made_at_once_do_not_mix(model: SplitModel) -> None:
    with LocalPipeline(model, SETTINGS) as pipeline:
        first, second = pipeline.run(map(image, range(200))), pipeline.run(map(image, range(200)))
        assert next(first).index == 0
        with pytest.raises(ConfigurationError, match="in another run"):
            next(second)
        assert [result.index for result in first] == list(range(1, 200))
