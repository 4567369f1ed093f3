"""Classifiers: one score for each class of an image. What only has their shape is not taken for one."""

from __future__ import annotations

import numpy as np

from split_infer_ros.models.decoders.facts import OutputFacts, rows_sum_to_one
from split_infer_ros.models.decoders.family import Family
from split_infer_ros.models.decoders.layout import Activation, OutputLayout, Part, PerBox, Suppression
from split_infer_ros.models.decoders.selected import are_rows_of_yolov7, has_batch_in_front

IMAGENET = (1000, 1001, 21_841, 21_843)  # numbers of classes
EMBEDDING_STEP = 64  # of the usual lengths of embeddings: 64, 128, 256, 384, 512, 768, ...
MIN_PLACES = 10  # numbers of five landmarks. As many logits are not all positive, and coordinates are
MAX_OF_BOX = 7  # numbers
_NAMES = ("logit", "prob", "class", "score", "softmax", "pred")
_OTHERS = ("embed", "feat", "hidden", "descriptor", "landmark", "keypoint", "pose", "depth", "vector", "latent", "age")


def _find(facts: OutputFacts) -> list[OutputLayout]:
    found = []
    for output in facts.outputs:
        is_flat = output.rank >= 2 and all(length == 1 for length in output.shape[2:])
        classes = output.shape[1] or facts.classes if is_flat else None
        if output.is_integer or classes in (None, 1) or facts.classes not in (None, classes):
            continue
        are_scores = facts.gives_probabilities(output.name)
        are_scores = are_scores or (output.values is not None and rows_sum_to_one(output.values.reshape(1, -1)))
        found.append(
            OutputLayout(
                "classifier",
                None,
                Part((output.name,)),
                activation=Activation.NONE if are_scores else Activation.SOFTMAX,
                per_box=PerBox.ALL,
                suppression=Suppression.NONE,
                classes=classes,
            )
        )
    return found


def _speaks_for(layout: OutputLayout, facts: OutputFacts) -> bool:
    """Whether the file says so, or the output looks like classes: one row for each image, and no embedding."""
    (name,) = layout.outputs
    if layout.classes is None or not _is_of_image(name, layout.classes, facts):
        return False
    if facts.task:
        return facts.task == "classify"
    if len(facts.outputs) > 1 or any(word in name.lower() for word in _OTHERS):
        return False
    if facts.classes == layout.classes or facts.gives_probabilities(name):
        return True
    values = facts.outputs[0].values
    if values is not None and not rows_sum_to_one(values.reshape(1, -1)):
        is_of_length_one = abs(float(np.linalg.norm(values)) - 1) < 1e-3  # an embedding
        if is_of_length_one or are_rows_of_yolov7(values):
            return False
    if layout.classes in IMAGENET or any(word in name.lower() for word in _NAMES):
        return True
    if (
        values is not None
        and layout.classes >= MIN_PLACES
        and values.min() > 0
        and not rows_sum_to_one(values.reshape(1, -1))
    ):
        return False
    return layout.classes % EMBEDDING_STEP != 0


def _is_of_image(name: str, classes: int, facts: OutputFacts) -> bool:
    """Whether an output has one row for each image. Without that, few numbers may be those of a box."""
    values = facts.output(name).values
    if values is not None and len(values) != 1:
        return False
    return has_batch_in_front(name, facts) or classes > MAX_OF_BOX or facts.gives_probabilities(name)


def _recipe(layout: OutputLayout, facts: OutputFacts) -> str:
    return "crop" if facts.is_ultralytics else "crop_imagenet"


FAMILIES = (Family("classifier", "(N, classes)", _find, _recipe, _speaks_for),)
