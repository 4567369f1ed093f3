"""Recognises an ONNX file's outputs: by its metadata, then by names, then by shapes.

Several layouts can have one shape. (1, 300, 6) may be 300 selected boxes, 300 boxes with one class and an objectness,
or six boxes with 296 classes. What tells them apart:

- The names of the classes in the metadata fix how many scores a box has.
- The size of the input fixes how many cells the YOLO family's maps have together. YOLOv8 and YOLOX have one box for
  each cell, YOLOv5 has three, and selected boxes are at most 1,000.
- YOLOv8's boxes come last, YOLOv5's and YOLOX's first. A file gives more boxes than numbers of a box.
- YOLOv6 has YOLOv5's layout, and one box for each cell, like YOLOX. Its output is called ``outputs``. YOLOX's is called
  ``output``, or its graph has an exponential.

What they leave open is refused, and the user's parameter ``decoder`` settles it.
"""

from __future__ import annotations

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.onnx_options import AUTO, LAYOUTS, Decoder
from split_infer_ros.models.onnx_outputs import (
    CORNERS_SCORE_CLASS,
    OutputFacts,
    OutputLayout,
    boxes_are_decoded,
    has_names_of_detr,
    layout_of,
)

MAX_SELECTED = 1000  # boxes that a network selects itself; usual are 100 and 300
SOFTMAX_QUERIES = 100  # of the first DETR and its kin; those with sigmoids have 300

_LOST = {"segment": "masks", "pose": "keypoints", "obb": "angles"}  # by Ultralytics' task
_LOST_NAMES = ("mask", "keypoint")
_SINGLE = (Decoder.YOLOV8, Decoder.YOLOV5, Decoder.YOLOX, Decoder.END_TO_END)


def recognise(facts: OutputFacts, wanted: str = AUTO) -> OutputLayout:
    """Returns how the outputs are read.

    Args:
        facts: what is known about the outputs.
        wanted: a value of ``Decoder``, or ``auto``.

    Raises:
        ConfigurationError: the wanted decoder cannot read the outputs, or they are not recognised. The error lists the
            tensors and the decoders.
    """
    if wanted != AUTO:
        layout = layout_of(Decoder(wanted), facts)
        if layout is None:
            raise ConfigurationError(
                f"decoder {wanted} cannot read the outputs of {_described(facts)}: it reads "
                f"{LAYOUTS[Decoder(wanted)]}. {_choices()}"
            )
        return layout
    _refuse_lost(facts)
    decoders = _candidates(facts)
    layouts = [layout for decoder in decoders if (layout := layout_of(decoder, facts)) is not None]
    if len(layouts) == 1:
        return layouts[0]
    if layouts:
        between = " or ".join(layout.decoder.value for layout in layouts)
        raise ConfigurationError(
            f"The outputs of {_described(facts)} can be those of {between}; set decoder to the right one."
        )
    raise ConfigurationError(f"The outputs of {_described(facts)} are not recognised. {_choices()}")


def _candidates(facts: OutputFacts) -> list[Decoder]:
    """Returns the decoders that may be right, as far as metadata, names and shapes tell."""
    rank = len(facts.outputs[0].shape) if facts.outputs else 0
    if len(facts.outputs) == 3:
        return [Decoder.TORCHVISION]
    if len(facts.outputs) == 2:
        return [_query_decoder(facts)] if has_names_of_detr(facts) else []
    if facts.metadata.get("task") == "classify" or rank != 3:
        return [Decoder.CLASSIFIER]
    columns = facts.outputs[0].shape[2]
    if facts.is_rtdetr:
        if columns == CORNERS_SCORE_CLASS == 4 + (facts.classes or 0):
            return [Decoder.RTDETR, Decoder.RTDETR_END_TO_END]  # both, which is refused
        return [Decoder.RTDETR_END_TO_END if columns in (None, CORNERS_SCORE_CLASS) else Decoder.RTDETR]
    if _suppresses_itself(facts) and columns in (None, CORNERS_SCORE_CLASS):
        return [Decoder.END_TO_END]
    if facts.metadata.get("task") == "detect" and layout_of(Decoder.YOLOV8, facts) is not None:
        return [Decoder.YOLOV8]  # its exporter can leave all dimensions open
    return _by_shape(facts)


def _query_decoder(facts: OutputFacts) -> Decoder:
    is_first_detr = "dets" not in (facts.outputs[0].name, facts.outputs[1].name) and any(
        tensor.shape[1:2] == (SOFTMAX_QUERIES,) for tensor in facts.outputs
    )
    return Decoder.DETR_SOFTMAX if is_first_detr else Decoder.DETR


def _suppresses_itself(facts: OutputFacts) -> bool:
    """Whether the metadata says that the network selects its boxes."""
    arguments = facts.metadata.get("args", "").replace('"', "'")
    return facts.metadata.get("end2end") == "True" or "'nms': True" in arguments


def _by_shape(facts: OutputFacts) -> list[Decoder]:
    """Returns the decoders that a single output of three dimensions may be for."""
    _, rows, columns = facts.outputs[0].shape
    possible = [decoder for decoder in _SINGLE if layout_of(decoder, facts) is not None]
    if columns is None:
        possible = [decoder for decoder in possible if decoder is Decoder.YOLOV8 and rows is not None]
    matching = [decoder for decoder in possible if _count_matches(decoder, facts, rows, columns)]
    if Decoder.YOLOX in matching and Decoder.YOLOV5 in matching:
        return _one_box_a_cell(facts)
    if matching:
        return matching
    if Decoder.YOLOV5 in possible and "stride" in facts.metadata and facts.classes is not None:
        return [Decoder.YOLOV5]  # its exporter writes names and stride; YOLOX's writes nothing
    if rows is not None and columns is not None and columns > rows:
        return [decoder for decoder in possible if decoder is Decoder.YOLOV8]
    if rows is not None and columns is not None:
        return [decoder for decoder in possible if decoder is not Decoder.YOLOV8]
    return possible


def _count_matches(decoder: Decoder, facts: OutputFacts, rows: int | None, columns: int | None) -> bool:
    """Whether there are as many boxes as a network of this kind gives for this input."""
    counts = facts.cell_counts
    if decoder is Decoder.YOLOV8:
        return columns in counts
    is_of_cells = rows in counts or rows in {3 * count for count in counts}
    if decoder is Decoder.END_TO_END:
        return rows is not None and rows <= MAX_SELECTED and not is_of_cells
    return is_of_cells if decoder is Decoder.YOLOV5 else rows in counts


def _one_box_a_cell(facts: OutputFacts) -> list[Decoder]:
    name = facts.outputs[0].name
    if name == "outputs":
        return [Decoder.YOLOV5]
    return [Decoder.YOLOX] if name == "output" or boxes_are_decoded(facts) else [Decoder.YOLOV5, Decoder.YOLOX]


def _refuse_lost(facts: OutputFacts) -> None:
    """Refuses a model that gives more than boxes."""
    lost = _LOST.get(facts.metadata.get("task", ""))
    named = [tensor.name for tensor in facts.outputs if any(name in tensor.name.lower() for name in _LOST_NAMES)]
    if lost or named:
        raise ConfigurationError(
            f"{_described(facts)} gives {lost or ' and '.join(named)}, which would be lost, because detections are "
            "boxes, scores and labels; use a model that detects or classifies."
        )


def _described(facts: OutputFacts) -> str:
    return f"{facts.graph.name} ({'; '.join(map(str, facts.outputs))})"


def _choices() -> str:
    return f"decoder takes one of: {'; '.join(f'{decoder.value} {layout}' for decoder, layout in LAYOUTS.items())}."
