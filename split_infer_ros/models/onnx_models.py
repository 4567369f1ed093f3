"""Models in ONNX files: what the file and its metadata say becomes a ``ModelEntry``. No code is run."""

from __future__ import annotations

from pathlib import Path

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models import box_decoders, query_decoders
from split_infer_ros.models.classifier import classify
from split_infer_ros.models.entry import Decode, ModelEntry
from split_infer_ros.models.onnx_inputs import read_image_input
from split_infer_ros.models.onnx_labels import MAX_LABELS, NAMES, labels_of_metadata, read_labels
from split_infer_ros.models.onnx_options import AUTO, Decoder, OnnxOptions
from split_infer_ros.models.onnx_outputs import OutputFacts, OutputLayout, boxes_are_decoded
from split_infer_ros.models.onnx_preprocess import usual_recipe
from split_infer_ros.models.onnx_recognition import recognise
from split_infer_ros.models.recipe import Recipe
from split_infer_ros.onnx_graphs.graph import OnnxGraph

SUFFIX = ".onnx"
MAX_UNNAMED = 1000  # classes of a model that neither names nor counts them


def is_onnx_file(name: str) -> bool:
    """Whether a model's name is that of an ONNX file."""
    return name.endswith(SUFFIX)


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
    image = read_image_input(graph, options.input_size)
    graph, height, width = image.graph, image.height, image.width
    labels: tuple[str, ...] = ()
    if options.labels:
        labels = read_labels(Path(options.labels).expanduser())
    elif NAMES in graph.metadata:
        labels = labels_of_metadata(graph.name, graph.metadata[NAMES])
    facts = OutputFacts(graph, height, width, len(labels) or None)
    layout = recognise(facts, options.decoder)
    names = tuple(tensor.name for tensor in graph.outputs)
    is_chosen = options.preprocessing != AUTO
    recipe = (
        Recipe.parse(options.preprocessing)
        if is_chosen
        else usual_recipe(layout.decoder, names, is_ultralytics=facts.is_ultralytics)
    )
    labels = _labels(graph, layout, labels)
    return ModelEntry(
        name=name,
        summary=f"{graph.name}, {len(labels):,} classes, decoded as {layout.decoder.value}",
        build=lambda: graph,
        weights=None,
        preprocess=image.fitted(recipe, is_chosen=is_chosen).preprocess(height, width),
        labels=labels,
        default_split_point=None,
        decode=_decode(layout, facts),
        notes=image.filled,
    )


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
