"""Models in ONNX files: what the file and its metadata say becomes a ``ModelEntry``. No code is run."""

from __future__ import annotations

import ast
from pathlib import Path

import torch

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models import box_decoders, query_decoders
from split_infer_ros.models.classifier import classify
from split_infer_ros.models.entry import Decode, ModelEntry
from split_infer_ros.models.onnx_labels import MAX_LABELS, NAMES, labels_of_metadata, read_labels
from split_infer_ros.models.onnx_options import AUTO, MAX_SIDE, Decoder, OnnxOptions, Recipe, parse_size
from split_infer_ros.models.onnx_outputs import OutputFacts, OutputLayout, boxes_are_decoded
from split_infer_ros.models.onnx_preprocess import make_preprocess, usual_recipe
from split_infer_ros.models.onnx_recognition import recognise
from split_infer_ros.onnx_graphs.graph import OnnxGraph

SUFFIX = ".onnx"
MAX_UNNAMED = 1000  # classes of a model that neither names nor counts them

_COLOURS = 3


def is_onnx_file(name: str) -> bool:
    """Whether a model's name is that of an ONNX file."""
    return name.lower().endswith(SUFFIX)


def load_onnx_file(name: str, options: OnnxOptions) -> ModelEntry:
    """Reads ``FILE.onnx`` and returns its entry.

    Args:
        name: the path of the file; ``~`` is the user's home.
        options: what the user says about it.

    Raises:
        ConfigurationError: the file cannot be read, its input is no image, or its outputs are not recognised.
    """
    from split_infer_ros.onnx_graphs.file import read_onnx  # here, because onnx is optional

    return onnx_entry(name, read_onnx(Path(name).expanduser()), options)


def onnx_entry(name: str, graph: OnnxGraph, options: OnnxOptions) -> ModelEntry:
    """Makes the entry of an ONNX model.

    Args:
        name: the name by which the user chose it.
        graph: the whole model.
        options: what the user says about it.

    Raises:
        ConfigurationError: the input is no image, the outputs are not recognised, or labels do not fit them.
    """
    height, width = _input_size(graph, options)
    labels: tuple[str, ...] = ()
    if options.labels:
        labels = read_labels(Path(options.labels).expanduser())
    elif NAMES in graph.metadata:
        labels = labels_of_metadata(graph.name, graph.metadata[NAMES])
    facts = OutputFacts(graph, height, width, len(labels) or None)
    layout = recognise(facts, options.decoder)
    names = tuple(tensor.name for tensor in graph.outputs)
    recipe = (
        usual_recipe(layout.decoder, names, is_ultralytics=facts.is_ultralytics)
        if options.preprocessing == AUTO
        else Recipe(options.preprocessing)
    )
    labels = _labels(graph, layout, labels)
    return ModelEntry(
        name=name,
        summary=f"{graph.name}, {len(labels):,} classes, decoded as {layout.decoder.value}",
        build=lambda: graph,
        weights=None,
        preprocess=make_preprocess(recipe, height, width),
        labels=labels,
        default_split_point=None,
        decode=_decode(layout, facts),
    )


def _input_size(graph: OnnxGraph, options: OnnxOptions) -> tuple[int, int]:
    """Returns height and width of the input in pixels, from the file, its metadata or the user."""
    shape = graph.inputs[0].shape if graph.inputs else ()
    is_image = len(graph.inputs) == 1 and len(shape) == 4 and shape[1] in (_COLOURS, None)
    if not is_image or graph.inputs[0].dtype != torch.float32:
        found = "; ".join(map(str, graph.inputs)) or "none"
        hint = " Export it with the channels in front of the rows." if shape[3:] == (_COLOURS,) else ""
        raise ConfigurationError(
            f"{graph.name} has the inputs {found}; a model takes one input, float32 images (N, 3, height, width).{hint}"
        )
    wanted = parse_size(options.input_size) if options.input_size else _size_of_metadata(graph)
    size = tuple(fixed or open_ for fixed, open_ in zip(shape[2:], wanted or (0, 0), strict=True))
    if options.input_size and size != wanted:
        raise ConfigurationError(
            f"input_size is {options.input_size}, but {graph.name} takes only {_text(shape[2])}x{_text(shape[3])} "
            "(height x width); leave input_size empty, or export the model for another size."
        )
    if not all(1 <= side <= MAX_SIDE for side in size):
        raise ConfigurationError(
            f"{graph.name} takes images {_text(shape[2])}x{_text(shape[3])} (height x width), and its metadata names "
            f"no size up to {MAX_SIDE}; set input_size to HEIGHTxWIDTH, such as 640x640, or export it for a fixed size."
        )
    return size[0], size[1]


def _size_of_metadata(graph: OnnxGraph) -> tuple[int, int] | None:
    """Returns height and width of the metadata's ``imgsz``; None if it holds none."""
    text = graph.metadata.get("imgsz", "")
    try:
        value = ast.literal_eval(text.strip()) if len(text) < 100 else None
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    sides = (value, value) if type(value) is int else value
    if not isinstance(sides, (list, tuple)) or len(sides) != 2 or any(type(side) is not int for side in sides):
        return None
    return sides[0], sides[1]


def _text(length: int | None) -> str:
    return "?" if length is None else str(length)


def _labels(graph: OnnxGraph, layout: OutputLayout, labels: tuple[str, ...]) -> tuple[str, ...]:
    """Returns a name for each class. Classes without names are numbers.

    A DETR may have more logits than classes: RF-DETR keeps one for the background.
    """
    classes = layout.classes or len(labels) or MAX_UNNAMED
    if classes > MAX_LABELS:
        raise ConfigurationError(
            f"The outputs of {graph.name} have {classes:,} classes ({'; '.join(map(str, graph.outputs))}); "
            f"at most {MAX_LABELS:,} are possible."
        )
    may_lack = layout.decoder in (Decoder.DETR, Decoder.DETR_SOFTMAX)
    if labels and (len(labels) > classes or (len(labels) < classes and not may_lack)):
        raise ConfigurationError(
            f"There are {len(labels)} labels for {graph.name}, whose outputs have {classes} classes "
            f"({'; '.join(map(str, graph.outputs))}); labels takes a file with one name for each class."
        )
    return labels + tuple(str(number) for number in range(len(labels), classes))


def _decode(layout: OutputLayout, facts: OutputFacts) -> Decode:
    """Makes the function that decodes the outputs."""
    height, width = facts.height, facts.width
    decoder, order = layout.decoder, layout.order
    if decoder is Decoder.YOLOV8:
        return box_decoders.decode_yolov8
    if decoder is Decoder.YOLOV5 or (decoder is Decoder.YOLOX and boxes_are_decoded(facts)):
        return box_decoders.decode_yolov5
    if decoder is Decoder.YOLOX:
        return box_decoders.YoloxDecoder(height, width)
    if decoder is Decoder.END_TO_END:
        return box_decoders.decode_end_to_end
    if decoder is Decoder.DETR:
        return query_decoders.detr(height, width, order)
    if decoder is Decoder.DETR_SOFTMAX:
        return query_decoders.detr_softmax(height, width, order)
    if decoder is Decoder.RTDETR:
        return query_decoders.rtdetr(height, width)
    if decoder is Decoder.RTDETR_END_TO_END:
        return query_decoders.rtdetr_end_to_end(height, width)
    if decoder is Decoder.TORCHVISION:
        return query_decoders.torchvision(order)
    return classify(height, width, gives_probabilities=facts.gives_probabilities)
