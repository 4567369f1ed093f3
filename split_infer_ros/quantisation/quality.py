"""Compares a model in int8 with the same model in float32, on images that were not used for calibration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from split_infer_ros.buffers.host_arrays import as_tensor
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.agreement import TOP_1, comparison_limits, objects_of, right_classes
from split_infer_ros.models.average_precision import Truth, mean_average_precision
from split_infer_ros.models.detections import Detections
from split_infer_ros.quantisation.samples import Samples
from split_infer_ros.runtime.inference import inference_mode
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partition_cache import Partition
from split_infer_ros.split.split_points import INPUT

MIN_AGREEMENT = Precision.INT8.min_agreement
MAX_LOSS = 0.01  # allowed loss of accuracy or mAP


@dataclass(frozen=True, slots=True)
class Quality:
    """How a model in int8 compares with the same model in float32.

    Attributes:
        measure: ``top-1`` for a classifier, ``mAP`` (IoU 0.5 to 0.95) for a detector.
        num_images: the number of images on which both were compared.
        agreement: how much int8 agrees with float32, 0..1: ``measure`` with the detections of float32 as the truth.
        float32, int8: ``measure`` of each model against annotations; None without annotations.
        elsewhere: the agreement if ONNX Runtime instead of OpenVINO computes the same graph in int8; None if that was
            not tried. It shows whether quantising or OpenVINO causes a loss.
    """

    measure: str
    num_images: int
    agreement: float
    float32: float | None = None
    int8: float | None = None
    elsewhere: float | None = None

    @property
    def loss(self) -> str:
        """A sentence that says how much int8 loses, if that is too much; empty if the loss is allowed.

        Against annotations, int8 may lose ``MAX_LOSS`` of ``measure``. Its agreement with float32 must be
        ``MIN_AGREEMENT`` or more.
        """
        if self.float32 is not None and self.int8 is not None and self.float32 - self.int8 > MAX_LOSS:
            return (
                f"int8 has a {self.measure} of {self.int8:.3f} and float32 of {self.float32:.3f}; "
                f"a loss of {MAX_LOSS} is allowed.{self._cause}"
            )
        if self.agreement < MIN_AGREEMENT:
            return (
                f"int8 agrees with float32 by {self.agreement:.3f} ({self.measure} on {self.num_images} images); "
                f"{MIN_AGREEMENT} is needed.{self._cause}"
            )
        return ""

    @property
    def _cause(self) -> str:
        """A sentence on whether quantising or OpenVINO causes the loss, to be appended; empty if that is unknown."""
        if self.elsewhere is None:
            return ""
        same = f" The same graph in ONNX Runtime agrees with float32 by {self.elsewhere:.3f}, so "
        return same + (
            "OpenVINO computes it differently."
            if self.elsewhere - self.agreement > MAX_LOSS
            else "the loss comes from quantising, and OpenVINO adds little."
        )


def detect(
    model: SplitModel, samples: Samples, measure: str, advance: Callable[[], object], network: Partition | None = None
) -> list[Detections]:
    """Returns a model's detections in each image, with boxes in pixels of the image.

    They are decoded with ``comparison_limits``.

    Args:
        model: the model. It runs as a whole, on the CPU.
        samples: the images.
        measure: ``TOP_1`` for a classifier, ``MAP`` for a detector.
        advance: called after each image.
        network: computes the whole model's outputs; None for the model's own engine.
    """
    network, entry, limits = network or model.head(INPUT), model.entry, comparison_limits(measure)
    detections = []
    for index, image in enumerate(samples):
        with inference_mode():
            outputs = network(image if model.takes_arrays else as_tensor(image))
            found = entry.detections_of(outputs, limits)[0]
        detections.append(entry.in_source(found, *samples.size(index)))
        advance()
    return detections


def compare(
    reference: Sequence[Detections],
    found: Sequence[Detections],
    truth: Sequence[Truth] | None = None,
    *,
    measure: str,
    score_threshold: float,
) -> Quality:
    """Compares the detections of int8 with those of float32, as ``detect`` gives them.

    Args:
        reference, found: for each image, the detections of float32 and of int8.
        truth: the annotated objects of each image, in pixels of the image; None without annotations.
        measure: ``TOP_1`` for a classifier, ``MAP`` for a detector.
        score_threshold: for a detector, detections of float32 with at least this score are the objects that int8 should
            find.

    Raises:
        ConfigurationError: float32 detects no object.
    """
    score = _top_1 if measure == TOP_1 else mean_average_precision
    objects = [objects_of(each, 0.0 if measure == TOP_1 else score_threshold) for each in reference]
    agreement = score(found, objects)
    if agreement is None:
        raise ConfigurationError(
            f"float32 detects nothing with a score of {score_threshold:g} or more in the {len(found)} images that "
            "judge int8: take images with objects, or a lower --score-threshold."
        )
    known = (None, None) if truth is None else (score(reference, truth), score(found, truth))
    return Quality(measure, len(found), agreement, *known)


def _top_1(found: Sequence[Detections], truth: Sequence[Truth]) -> float:
    """Returns the share of images, 0..1, whose best class is the true one."""
    right = right_classes(found, truth)
    return sum(right) / len(right)
