"""Inputs beside the images that the package can fill, because their names say what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from split_infer_ros.buffers.host_arrays import is_floating
from split_infer_ros.onnx.graph import OnnxTensor
from split_infer_ros.onnx.inputs import ImageForm

SCORE_THRESHOLD = 0.05  # in the graph. The parameter score_threshold is applied afterwards.
IOU_THRESHOLD = 0.5  # the default of the parameter nms_threshold
MAX_BOXES = 300

_WIDTH_FIRST = ("orig_target_sizes", "orig_target_size", "orig_sizes", "orig_size", "target_sizes", "target_size")
_HEIGHT_FIRST = ("im_shape", "image_shape", "img_shape", "image_size", "img_size", "input_shape", "input_image_shape")
_FACTORS = ("scale_factor", "scale_factors")
_IMAGE_FACTS = ("im_info", "image_info")
_MASKS = ("pixel_mask", "pixel_masks", "image_mask")
_SCORES = ("score", "conf", "confidence", "prob")
_OVERLAPS = ("iou", "nms", "nms_iou", "iou_nms")
_THRESHOLDS = ("_threshold", "_thresh", "_thres", "_thr")
_COUNTS = (
    *("max_output_boxes_per_class", "max_output_boxes", "max_boxes", "max_boxes_per_class", "max_per_image"),
    *("max_detections", "max_detections_per_class", "max_det", "max_dets", "max_num_detections"),
    *("keep_top_k", "keep_topk", "top_k", "topk"),
)

SUPPLIED = (
    "the size of the original image (orig_target_sizes, im_shape and the like), scale_factor, im_info, pixel_mask, and "
    "thresholds and limits of the non-maximum suppression (score_threshold, iou_threshold, max_output_boxes_per_class "
    "and the like)"
)
"""What the package can fill, for messages."""


@dataclass(frozen=True, slots=True)
class Filling:
    """What an input is filled with.

    Attributes:
        values: the input's elements for one image; a single value stands for all of them.
        lengths: the input's shape, without the batch if ``is_repeated``.
        is_repeated: whether the first dimension is the batch, so that the values are repeated for each image.
        meaning: what the values are, for the log.
    """

    values: tuple[float, ...]
    lengths: tuple[int, ...]
    is_repeated: bool
    meaning: str


def is_known(tensor: OnnxTensor) -> bool:
    """Returns whether an input's name says that it takes something else than images."""
    name = _plain(tensor.name)
    known = (*_WIDTH_FIRST, *_HEIGHT_FIRST, *_FACTORS, *_IMAGE_FACTS, *_MASKS, *_COUNTS)
    return name in known or _threshold(name) is not None


def is_width_first(tensor: OnnxTensor) -> bool:
    """Returns whether an input takes the original image's width and height, as in RT-DETR, D-FINE and DEIM."""
    return _plain(tensor.name) in _WIDTH_FIRST


def filling_of(tensor: OnnxTensor, images: ImageForm, height: int, width: int) -> Filling | None:
    """Returns what fills an input of a graph for images of this size; None if the package cannot fill it.

    An input for the size of the original image gets the size of the model's input. So the graph gives its boxes in
    pixels of the model's input.

    Args:
        tensor: the input.
        images: how the graph takes its images.
        height, width: the size of the images in pixels.
    """
    name, threshold = _plain(tensor.name), _threshold(_plain(tensor.name))
    of_image: tuple[tuple[Sequence[str], tuple[float, ...], tuple[int, ...], str], ...] = (
        (_WIDTH_FIRST, (width, height), (2,), f"the width and height of the input, {width} {height}"),
        (_HEIGHT_FIRST, (height, width), (2,), f"the height and width of the input, {height} {width}"),
        (_FACTORS, (1.0,), (2,), "the scale 1"),
        (_IMAGE_FACTS, (height, width, 1.0), (3,), f"the height, width and scale of the input, {height} {width} 1"),
        (_MASKS, (1.0,), (height, width), "ones: no pixel is padding"),
    )
    for names, values, lengths, meaning in of_image:
        if name in names:
            return _of_image(tensor, values, lengths, images, meaning)
    if threshold is not None and is_floating(tensor.dtype):
        return _single(tensor, threshold)
    if name in _COUNTS and not is_floating(tensor.dtype):
        return _single(tensor, MAX_BOXES)
    return None


def _of_image(
    tensor: OnnxTensor, values: tuple[float, ...], lengths: tuple[int, ...], images: ImageForm, meaning: str
) -> Filling | None:
    """Returns what fills an input that has one part for each image, or one part for a single image."""
    if _fits(tensor.shape, lengths):
        return Filling(values, lengths, False, meaning)
    if not tensor.shape or not _fits(tensor.shape[1:], lengths):
        return None
    is_repeated = images.has_batch and tensor.shape[0] in (None, images.tensor.shape[0])
    return Filling(values, lengths if is_repeated else (1, *lengths), is_repeated, meaning)


def _single(tensor: OnnxTensor, value: float) -> Filling | None:
    """Returns what fills an input of one number."""
    if len(tensor.shape) > 2 or any(length not in (1, None) for length in tensor.shape):
        return None
    return Filling((value,), (1,) * len(tensor.shape), False, f"{value:g}")


def _fits(shape: Sequence[int | None], lengths: Sequence[int]) -> bool:
    return len(shape) == len(lengths) and all(one in (None, other) for one, other in zip(shape, lengths, strict=True))


def _threshold(name: str) -> float | None:
    """Returns the threshold that a name stands for; None if it stands for none."""
    for ending in _THRESHOLDS:
        stem = name.removesuffix(ending)
        if stem != name and stem in _OVERLAPS:
            return IOU_THRESHOLD
        if stem != name and stem in _SCORES:
            return SCORE_THRESHOLD
    return None


def _plain(name: str) -> str:
    """Returns the last part of a name in lower case: ``serving_default/Score-Threshold:0`` is ``score_threshold``."""
    return name.partition(":")[0].rpartition("/")[2].lower().replace("-", "_").replace(".", "_")
