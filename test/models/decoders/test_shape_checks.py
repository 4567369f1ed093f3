"""Declarations that the decoder could not follow are refused before a frame flows."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")

from onnx_files import Shape, hollow

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.decoders.facts import OutputFacts
from split_infer_ros.models.decoders.layout import OutputLayout
from split_infer_ros.models.decoders.recognition import recognise

SIDE = 64
MAPS: dict[str, Shape] = {
    "heat": ("n", 3, 16, 16),
    "sizes": ("n", 2, 16, 16),
    "rest": ("n", 2, 16, 16),
    "number": ("n", 1),
    "rows": ("n", 256, 3),
}
PEAKS = "boxes=sizes,rows=maps,encoding=sizes,strides=4,peaks=true"


def read(declared: str) -> OutputLayout:
    return recognise(OutputFacts(hollow(MAPS), SIDE, SIDE, None), declared).layout


@pytest.mark.parametrize("more", ["", ",centres=rest", ",classes=rest[0:1]", ",activation=sigmoid", ",nms=all"])
def test_peaks_are_found_in_maps_of_scores(more: str) -> None:
    assert read(f"{PEAKS},scores=heat{more}").peaks


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("objectness=rest[0:1]", "objectness"),
        ("counts=number", "counts"),
        ("background=first", "background first"),
        ("background=last", "background last"),
        ("activation=softmax", "activation softmax"),
    ],
)
def test_peaks_beside_what_changes_scores_are_refused(more: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"decoder has peaks true and {named}; .* leave out peaks or {named}"):
        read(f"{PEAKS},scores=heat,{more}")


def test_peaks_of_scores_that_are_no_maps_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"takes the scores from rows, which has 3 dimensions; peaks are found"
    ):
        read(f"{PEAKS},scores=rows")


@pytest.mark.parametrize(
    "entry",
    [
        *("range=0..1", "encoding=centre_size", "nms=none", "strides=8/16", "rows=columns", "per_box=all"),
        *("classes=rest", "objectness=rest[0:1]", "counts=number", "peaks=true", "first_class=1", "anchors=a.npy"),
    ],
)
def test_a_declaration_that_forgot_its_boxes_is_refused(entry: str) -> None:
    key = entry.partition("=")[0]
    with pytest.raises(
        ConfigurationError, match=rf"decoder has {key} and no boxes; add boxes .* or leave out {key}: a"
    ):
        read(f"scores=number,{entry}")


def test_a_declared_classifier_has_the_keys_of_scores() -> None:
    layout = read("scores=rows,activation=softmax,background=first,num_classes=767")
    assert (layout.boxes, layout.classes) == (None, 767)
