"""Finds the input of an ONNX file that takes the images, its form and size, and what fills the other inputs."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx.graph import OnnxGraph, OnnxTensor
from split_infer_ros.onnx.image_size import MAX_SIDE, parse_size
from split_infer_ros.onnx.inputs import GraphEnds, ImageForm, needs_float32
from split_infer_ros.onnx.nodes import used_values
from split_infer_ros.onnx.parts import without_weights
from split_infer_ros.onnx.second_inputs import SUPPLIED, filling_of, is_known, is_width_first
from split_infer_ros.onnx.shapes import accepts

DETECTOR_SIDES = (640, 512, 416, 320, 300, 256, 224)  # tried in this order if nobody names a size
CLASSIFIER_SIDES = (224, 256, 299, 320, 384, 512, 640)
MIN_GUESSED_SIDE = 8  # pixels; a shorter side of an input without a batch is something else

_COLOURS, _ONE_CHANNEL = 3, 1


@dataclass(frozen=True, slots=True)
class OnnxImageInput:
    """How a model takes images, and a graph that takes them in one way.

    Attributes:
        graph: takes one input, float32 (N, 3, height, width). Its floating-point outputs are float32. It is the file's
            own graph if that already does so, or else an edited copy.
        height, width: the size of the images in pixels.
        levels: whether the file takes whole numbers. The graph's input is then 0..255.
        is_grey: whether the file takes one channel. The graph makes it of red, green and blue, in this order.
        is_stretched: whether the file also takes the size of the original image, as RT-DETR and similar models do.
            Images are then stretched to the input's size.
        filled: sentences for the log about what the package supplies because the file leaves it open.
    """

    graph: OnnxGraph
    height: int
    width: int
    levels: bool = False
    is_grey: bool = False
    is_stretched: bool = False
    filled: tuple[str, ...] = ()


def read_image_input(graph: OnnxGraph, input_size: str = "") -> OnnxImageInput:
    """Finds out how a graph takes images, and makes a graph whose only input is float32 (N, 3, height, width).

    Args:
        graph: the whole model.
        input_size: ``HEIGHTxWIDTH`` as the user wants it; empty for the size in the file or its metadata.

    Raises:
        ConfigurationError: no input takes images, another input cannot be filled, or the size does not fit.
    """
    form, others = _told_apart(graph)
    height, width, note = _size(graph, form, others, input_size)
    edited, filled = _edited(graph, form, others, height, width)
    return OnnxImageInput(
        edited,
        height,
        width,
        levels=form.is_integer,
        is_grey=form.colours == _ONE_CHANNEL,
        is_stretched=any(map(is_width_first, others)),
        filled=tuple(filter(None, (note, *filled))),
    )


def _told_apart(graph: OnnxGraph) -> tuple[ImageForm, list[OnnxTensor]]:
    """Returns how the graph takes images, and the graph's other inputs."""
    forms = [form for tensor in graph.inputs if not is_known(tensor) and (form := _form_of(tensor)) is not None]
    if len(forms) > 1:
        read = {name for node in graph.proto.graph.node for name in used_values(node)}
        forms = [form for form in forms if form.tensor.name in read] or forms
    if len(forms) != 1:
        found = "; ".join(map(str, graph.inputs)) or "none"
        raise ConfigurationError(
            f"{graph.name} has the inputs {found}; a model takes one input of images, such as float32 images (N, 3, "
            "height, width). Its channels may also be one, or lie behind the columns, and its elements may be of any "
            f"type but bool. Beside it, the package supplies {SUPPLIED}."
        )
    return forms[0], [tensor for tensor in graph.inputs if tensor.name != forms[0].tensor.name]


def _form_of(tensor: OnnxTensor) -> ImageForm | None:
    """Returns how an input takes images; None if it takes something else."""
    shape = tensor.shape
    if tensor.dtype == np.bool_:
        return None
    if len(shape) == 4:
        if shape[1] in (_COLOURS, _ONE_CHANNEL):
            return ImageForm(tensor, shape[1])
        if shape[3] in (_COLOURS, _ONE_CHANNEL):
            return ImageForm(tensor, shape[3], is_channels_last=True)
        return ImageForm(tensor, _COLOURS) if shape[1] is None else None
    if len(shape) != 3:
        return None
    for place, sides in ((0, shape[1:]), (2, shape[:2])):
        if shape[place] in (_COLOURS, _ONE_CHANNEL) and all(side is None or side >= MIN_GUESSED_SIDE for side in sides):
            colours = shape[place] or _COLOURS
            return ImageForm(tensor, colours, is_channels_last=place == 2, has_batch=False)
    return None


def _size(graph: OnnxGraph, form: ImageForm, others: Sequence[OnnxTensor], input_size: str) -> tuple[int, int, str]:
    """Returns the height and width of the input in pixels, and a note for the log.

    The size comes from the file, its metadata or the user. Otherwise, the first usual size that fits the graph is
    taken.
    """
    rows, columns = form.sides
    wanted = parse_size(input_size) if input_size else _size_of_metadata(graph)
    if wanted is not None:
        height, width = rows or wanted[0], columns or wanted[1]
        if input_size and (height, width) != wanted:
            raise ConfigurationError(
                f"input_size is {input_size}, but {graph.name} takes only {_text(rows)}x{_text(columns)} (height x "
                "width); leave input_size empty, or export the model for another size."
            )
    else:
        height, width = rows or 0, columns or 0
    if any(side > MAX_SIDE for side in (height, width)):
        raise ConfigurationError(
            f"{graph.name} takes images {height}x{width} (height x width); sides up to {MAX_SIDE} are possible."
        )
    if height and width:
        return height, width, ""
    is_classifier = len(graph.outputs) == 1 and len(graph.outputs[0].shape) == 2
    sides = CLASSIFIER_SIDES if is_classifier else DETECTOR_SIDES
    skeleton = OnnxGraph(graph.name, without_weights(graph.proto))
    for side in sides:
        height, width = rows or side, columns or side
        if accepts(_edited(skeleton, form, others, height, width)[0], (1, _COLOURS, height, width)):
            break
    else:
        height, width = rows or sides[0], columns or sides[0]
    return (
        height,
        width,
        f"{graph.name} takes images {_text(rows)}x{_text(columns)} (height x width), and its metadata names no size, "
        f"so it runs at {height}x{width}; input_size sets another size.",
    )


def _size_of_metadata(graph: OnnxGraph) -> tuple[int, int] | None:
    """Returns height and width of the metadata's ``imgsz``; None if it holds none that is possible."""
    text = graph.metadata.get("imgsz", "")
    try:
        value = ast.literal_eval(text.strip()) if len(text) < 100 else None
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    sides = (value, value) if type(value) is int else value
    if not isinstance(sides, (list, tuple)) or len(sides) != 2:
        return None
    if any(type(side) is not int or not 1 <= side <= MAX_SIDE for side in sides):
        return None
    return sides[0], sides[1]


def _edited(
    graph: OnnxGraph, form: ImageForm, others: Sequence[OnnxTensor], height: int, width: int
) -> tuple[OnnxGraph, list[str]]:
    """Returns a graph that takes float32 (N, 3, height, width) alone, and sentences about its filled inputs."""
    if form.is_plain and not others and not needs_float32(graph):
        return graph, []
    ends = GraphEnds(graph)
    ends.take_images(form, height, width)
    filled = []
    read = {name for node in graph.proto.graph.node for name in used_values(node)}
    for tensor in others:
        filling = filling_of(tensor, form, height, width)
        if filling is None and tensor.name not in read:
            ends.drop(tensor.name)
            continue
        if filling is None:
            raise ConfigurationError(
                f"{graph.name} has the inputs {'; '.join(map(str, graph.inputs))}, and the package cannot fill "
                f"'{tensor.name}'. Beside images, it supplies {SUPPLIED}. Export the model with fewer inputs."
            )
        ends.fill(tensor.name, filling.values, filling.lengths, is_repeated=filling.is_repeated)
        filled.append(f"The input '{tensor.name}' of {graph.name} is filled with {filling.meaning}.")
    # A graph whose image has no batch may put a batch of 1 in front of each of its outputs.
    have_batch = form.has_batch or all(len(each.shape) > 1 and each.shape[0] == 1 for each in graph.outputs)
    ends.give_float32(adds_batch=not have_batch)
    return ends.result(), filled


def _text(length: int | None) -> str:
    return "?" if length is None else str(length)
