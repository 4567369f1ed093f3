"""Which rows of numbers are a classifier's: by labels, names, the last operator, the values and their number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("onnx")

from export_values import softmax
from onnx_files import hollow

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.decoders.facts import OutputFacts
from split_infer_ros.models.decoders.layout import Activation, OutputLayout
from split_infer_ros.models.decoders.recognition import recognise

SIDE = 64


def noise(length: int, scale: float = 1.0) -> npt.NDArray[np.float32]:
    return (scale * np.random.default_rng(length).normal(0, 1, (1, length))).astype(np.float32)


def read(
    row: npt.NDArray[np.float32],
    name: str = "output",
    *,
    classes: int | None = None,
    operators: Sequence[str] = ("Conv",),
    wanted: str = "auto",
) -> OutputLayout:
    images = {"images": ("batch", 3, SIDE, SIDE)}
    graph = hollow({name: ("batch", row.shape[1])}, inputs=images, operators=operators)
    return recognise(OutputFacts(graph, SIDE, SIDE, classes, {name: row}), wanted).layout


def check_refused(row: npt.NDArray[np.float32], name: str = "output") -> None:
    with pytest.raises(ConfigurationError, match=r"are not recognised\. By their shapes, decoder could be: .*classif"):
        read(row, name)


@pytest.mark.parametrize("length", [3, 4, 6, 7, 62, 136, 196, 257, 1404])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_numbers_around_0_may_be_anything(length: int, scale: float) -> None:
    """Angles, parameters and landmarks look like logits."""
    row = noise(length, scale)
    check_refused(row)
    assert read(row, wanted="classifier").classes == length


@pytest.mark.parametrize("name", ["output", "pose", "age", "features"])
@pytest.mark.parametrize("length", [3, 62, 512])
def test_labels_tell_a_classifier_whatever_its_name(name: str, length: int) -> None:
    layout = read(noise(length), name, classes=length)
    assert (layout.name, layout.activation) == ("classifier", Activation.SOFTMAX)


@pytest.mark.parametrize(
    "name", ["logits", "cls_prob", "image_scores", "transposed_logits", "Prediction:0", "fc/class"]
)
def test_a_speaking_name_tells_a_classifier(name: str) -> None:
    assert read(noise(5), name).name == "classifier"


def test_rows_that_sum_to_one_tell_a_classifier() -> None:
    layout = read(softmax(noise(3)))
    assert (layout.name, layout.activation) == ("classifier", Activation.NONE)


@pytest.mark.parametrize("name", ["image", "messages", "transpose_12", "exposed", "average"])
def test_a_part_of_a_word_names_no_other_numbers(name: str) -> None:
    assert read(noise(1000), name).name == "classifier"


@pytest.mark.parametrize(
    "name",
    ["age", "pose", "head_pose_pred", "Landmarks:0", "image_features", "text-embeds", "poses3d", "depth_prob"],
)
def test_a_name_of_other_numbers_is_refused(name: str) -> None:
    check_refused(noise(1000), name)
    check_refused(softmax(noise(1000)), name)
