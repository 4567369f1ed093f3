"""The family of classifiers, with one score for each class of an image.

The shape alone does not show that an output is a classifier's.
"""

from __future__ import annotations

import re

import numpy as np

from split_infer_ros.models.decoders.facts import Output, OutputFacts, rows_sum_to_one
from split_infer_ros.models.decoders.family import Family
from split_infer_ros.models.decoders.layout import Activation, OutputLayout, Part, PerBox, Suppression
from split_infer_ros.models.decoders.selected import are_rows_of_yolov7, has_batch_in_front

IMAGENET = (1000, 1001, 10_450, 11_221, 11_821, 21_841, 21_843)  # numbers of classes, including its parts and versions
OTHER_DATA = (2, 10, 37, 100, 365)  # numbers of classes: yes or no, digits or CIFAR-10, Pets, CIFAR-100, Places
MIN_PLACES = 10  # numbers of five landmarks. Coordinates are all positive, and so many logits are not
MAX_OF_BOX = 7  # numbers
_NAMES = ("logit", "prob", "class", "score", "softmax", "pred")
_OTHERS = {
    *("embed", "embedding", "feat", "feature", "hidden", "descriptor", "vector", "latent"),
    *("landmark", "pose", "depth", "age"),
}


def _find(facts: OutputFacts) -> list[OutputLayout]:
    found = []
    for output in facts.outputs:
        is_flat = output.rank >= 2 and all(length == 1 for length in output.shape[2:])
        classes = output.shape[1] or facts.classes if is_flat else None
        if output.is_integer or classes in (None, 1) or facts.classes not in (None, classes):
            continue
        found.append(
            OutputLayout(
                "classifier",
                None,
                Part((output.name,)),
                activation=Activation.NONE if _are_scores(output, facts) else Activation.SOFTMAX,
                per_box=PerBox.ALL,
                suppression=Suppression.NONE,
                classes=classes,
            )
        )
    return found


def _are_scores(output: Output, facts: OutputFacts) -> bool:
    """Whether numbers are probabilities: a softmax or a sigmoid makes them, or they sum to 1."""
    values = output.values
    return facts.gives_probabilities(output.name) or (values is not None and rows_sum_to_one(values.reshape(1, -1)))


def _speaks_for(layout: OutputLayout, facts: OutputFacts) -> bool:
    """Whether the file says that it classifies, or the output looks like scores of classes.

    Such an output has one row for each image, and is no embedding.
    """
    output = facts.output_of(layout.scores)
    if layout.classes is None or not _is_of_image(output, layout.classes, facts):
        return False
    if facts.task:
        return facts.task == "classify"
    if len(facts.outputs) > 1:
        return False
    if facts.classes == layout.classes:
        return True
    if _names_something_else(output):
        return False
    return _are_scores(output, facts) or (not _is_vector(output) and _is_named_or_counted(output, layout.classes))


def _names_something_else(output: Output) -> bool:
    """Whether a word of the name stands for other numbers. A part of a word does not count: "image" is no age."""
    return any(word.removesuffix("s") in _OTHERS for word in re.split(r"[^a-z]+", output.name.lower()))


def _is_vector(output: Output) -> bool:
    """Whether a row is an embedding of length 1, or a box."""
    if output.values is None:
        return False
    return abs(float(np.linalg.norm(output.values)) - 1) < 1e-3 or are_rows_of_yolov7(output.values)


def _is_named_or_counted(output: Output, classes: int) -> bool:
    """Whether an output has a name of scores, or as many numbers as a well-known data set has classes.

    Any other output may hold angles, landmarks or parameters, which lie around 0 as logits do.
    """
    if classes in IMAGENET or output.mentions(*_NAMES):
        return True
    are_places = output.values is not None and classes >= MIN_PLACES and output.values.min() > 0
    return classes in OTHER_DATA and not are_places


def _is_of_image(output: Output, classes: int, facts: OutputFacts) -> bool:
    """Whether an output has one row for each image. If the file does not say so, a few numbers may be a box."""
    if output.values is not None and len(output.values) != 1:
        return False
    return has_batch_in_front(output.name, facts) or classes > MAX_OF_BOX or facts.gives_probabilities(output.name)


def _recipe(layout: OutputLayout, facts: OutputFacts) -> str:
    return "crop" if facts.is_ultralytics else "crop_imagenet"


FAMILIES = (Family("classifier", "(N, classes)", _find, _recipe, _speaks_for),)
