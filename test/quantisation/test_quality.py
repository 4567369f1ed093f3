"""The verdict on a model in int8, and the images on which it is judged."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from split_infer_ros.errors import ConfigurationError, SourceError
from split_infer_ros.models.agreement import MAP, TOP_1
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.detections import Detections
from split_infer_ros.quantisation.quality import Quality, compare
from split_infer_ros.quantisation.samples import MIN_CALIBRATION, MIN_TEST, Samples, open_samples


def classes(*labels: int) -> list[Detections]:
    box, score = np.array([[0, 0, 8, 8]], np.float32), np.array([0.3], np.float32)
    return [Detections(box, score, np.array([each])) for each in labels]


def test_top_1_counts_images_of_the_same_class() -> None:
    quality = compare(classes(1, 2, 3, 4), classes(1, 2, 3, 0), measure=TOP_1, score_threshold=0.5)
    assert (quality.agreement, quality.num_images, quality.float32) == (0.75, 4, None)
    assert "0.750 (top-1 on 4 images); 0.97 is needed" in quality.loss


def test_a_loss_against_annotations_is_refused() -> None:
    truth = [(each.boxes, each.labels) for each in classes(*range(100))]
    wrong = classes(*range(98), 0, 0)
    quality = compare(classes(*range(100)), wrong, truth, measure=TOP_1, score_threshold=0.5)
    assert (quality.agreement, quality.float32, quality.int8) == (0.98, 1.0, 0.98)
    assert "a loss of 0.01 is allowed" in quality.loss


@pytest.mark.parametrize(("agreement", "float32", "int8"), [(0.97, None, None), (0.99, 0.8, 0.795), (0.99, 0.8, 0.9)])
def test_little_loss_is_none(agreement: float, float32: float | None, int8: float | None) -> None:
    assert Quality(MAP, 50, agreement, float32, int8).loss == ""


def test_a_loss_says_whether_quantising_or_openvino_causes_it() -> None:
    graph = Quality(MAP, 50, 0.90, elsewhere=0.901).loss
    assert graph.endswith("agrees with float32 by 0.901, so the loss comes from quantising, and OpenVINO adds little.")
    engine = Quality(MAP, 50, 0.0, elsewhere=0.99).loss
    assert engine.endswith("agrees with float32 by 0.990, so OpenVINO computes it differently.")
    assert not Quality(MAP, 50, 0.98, elsewhere=0.99).loss


def test_a_detector_that_finds_nothing_cannot_be_compared() -> None:
    with pytest.raises(ConfigurationError, match=r"detects nothing with a score of 0\.5"):
        compare([Detections.empty()], [Detections.empty()], measure=MAP, score_threshold=0.5)


def write_images(folder: Path, count: int) -> None:
    for index in range(count):
        cv2.imwrite(str(folder / f"{index:03}.png"), np.full((30, 40, 3), index, np.uint8))


def test_images_of_both_kinds_are_spread_and_none_is_in_both(tmp_path: Path) -> None:
    write_images(tmp_path, 60)
    calibration, test = open_samples(find_model("shapes"), tmp_path)
    both = {file.name for file in (*calibration.files, *test.files)}
    assert len(calibration) + len(test) == len(both) == 60
    assert len(calibration) >= MIN_CALIBRATION
    assert len(test) >= MIN_TEST
    assert any(file.name > "050" for file in calibration.files)
    assert next(iter(calibration)).shape == (1, 3, 480, 640)


def test_too_few_images_are_refused(tmp_path: Path) -> None:
    write_images(tmp_path, 49)
    with pytest.raises(SourceError, match="holds 49 images, and 50 are needed"):
        open_samples(find_model("shapes"), tmp_path)
    for name in ("none", "a" * 300):
        with pytest.raises(SourceError, match="There is no folder"):
            open_samples(find_model("shapes"), tmp_path / name)


def test_annotations_are_read_in_pixels_of_the_image(tmp_path: Path) -> None:
    write_images(tmp_path, 1)
    samples, note = Samples(find_model("shapes"), [tmp_path / "000.png"]), tmp_path / "000.txt"
    note.write_text("2 0.5 0.5 0.5 1\n\n1\n")
    boxes, labels = samples.annotation(0, tmp_path)
    assert boxes.tolist() == [[10.0, 0.0, 30.0, 30.0], [0.0, 0.0, 40.0, 30.0]]
    assert labels.tolist() == [2, 1]
    for line in ("3 0.5 0.5 1 1", "1 0.5", "x", "0.5"):
        note.write_text(line)
        with pytest.raises(SourceError, match=r"000\.txt"):
            samples.annotation(0, tmp_path)
