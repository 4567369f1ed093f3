"""What an ONNX file's outputs are like: facts about them, and whether a decoder can read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from split_infer_ros.models.onnx_options import Decoder
from split_infer_ros.onnx_graphs.graph import OnnxGraph, OnnxTensor

CORNERS_SCORE_CLASS = 6  # numbers of a box that was selected already

_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32), (4, 8, 16, 32, 64), (16, 32))  # of the YOLO family's maps
_PASSED_THROUGH = ("Identity", "Cast", "Reshape", "Flatten", "Squeeze")
_BOX_NAMES = ("box", "dets")
_LOGITS_NAMES = ("logits", "pred_logits", "labels", "scores")


@dataclass(frozen=True)
class OutputFacts:
    """What is known about a model's outputs.

    Attributes:
        graph: the whole model.
        height, width: the size of its input in pixels.
        classes: how many classes have names; None if none have.
    """

    graph: OnnxGraph
    height: int
    width: int
    classes: int | None

    @property
    def outputs(self) -> tuple[OnnxTensor, ...]:
        """The outputs, in the file's order."""
        return self.graph.outputs

    @property
    def metadata(self) -> Mapping[str, str]:
        """The file's metadata."""
        return self.graph.metadata

    @property
    def is_ultralytics(self) -> bool:
        """Whether Ultralytics' package exported the file."""
        return self.metadata.get("author") == "Ultralytics"

    @property
    def is_rtdetr(self) -> bool:
        """Whether Ultralytics' package exported an RT-DETR."""
        about = self.metadata.get("head", "") + self.metadata.get("description", "")
        return self.is_ultralytics and "rtdetr" in about.lower().replace("-", "")

    @cached_property
    def cell_counts(self) -> frozenset[int]:
        """How many cells the YOLO family's maps can have together, for this input."""
        return frozenset(self.cells(strides) for strides in _STRIDES)

    def cells(self, strides: tuple[int, ...]) -> int:
        """Returns the number of cells of maps with these strides."""
        return sum(-(-self.height // stride) * -(-self.width // stride) for stride in strides)

    @cached_property
    def operators(self) -> frozenset[str]:
        """The types of the graph's nodes."""
        return frozenset(str(node.op_type) for node in self.graph.proto.graph.node)

    @cached_property
    def gives_probabilities(self) -> bool:
        """Whether the first output comes from a softmax or a sigmoid."""
        makers = {str(name): node for node in self.graph.proto.graph.node for name in node.output}
        node = makers.get(self.outputs[0].name)
        while node is not None and node.op_type in _PASSED_THROUGH:
            node = makers.get(str(node.input[0]))
        return node is not None and node.op_type in ("Softmax", "Sigmoid")


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """Where a decoder finds what it reads.

    Attributes:
        decoder: what reads the outputs.
        order: the places of its tensors among the outputs, in the order in which the decoder names them.
        classes: how many classes there are; None if the outputs do not tell.
    """

    decoder: Decoder
    order: tuple[int, ...] = (0,)
    classes: int | None = None


def layout_of(decoder: Decoder, facts: OutputFacts) -> OutputLayout | None:
    """Returns how a decoder reads these outputs; None if it cannot."""
    if not all(tensor.dtype.is_floating_point for tensor in facts.outputs) and decoder is not Decoder.TORCHVISION:
        return None
    if decoder is Decoder.TORCHVISION:
        return _selected(facts)
    if decoder in (Decoder.DETR, Decoder.DETR_SOFTMAX):
        return _queries(decoder, facts)
    if len(facts.outputs) != 1:
        return None
    (shape,) = (tensor.shape for tensor in facts.outputs)
    if decoder is Decoder.CLASSIFIER:
        fits = len(shape) >= 2 and all(length == 1 for length in shape[2:]) and shape[1] != 1
        return OutputLayout(decoder, classes=shape[1] or facts.classes) if fits else None
    if len(shape) != 3:
        return None
    _, rows, columns = shape
    if decoder in (Decoder.END_TO_END, Decoder.RTDETR_END_TO_END):
        return OutputLayout(decoder, classes=facts.classes) if columns in (CORNERS_SCORE_CLASS, None) else None
    if decoder is Decoder.YOLOV8:
        return _scores_of_classes(decoder, facts, rows, 4)
    if decoder is Decoder.RTDETR:
        return _scores_of_classes(decoder, facts, columns, 4)
    if decoder is Decoder.YOLOX and not boxes_are_decoded(facts) and rows not in (None, facts.cells((8, 16, 32))):
        return None
    return _scores_of_classes(decoder, facts, columns, 5)


def boxes_are_decoded(facts: OutputFacts) -> bool:
    """Whether a YOLOX was exported with its boxes in pixels: only then, its graph has an exponential."""
    return "Exp" in facts.operators


def _scores_of_classes(decoder: Decoder, facts: OutputFacts, length: int | None, others: int) -> OutputLayout | None:
    """Reads a dimension that holds ``others`` numbers and a score for each class."""
    classes = facts.classes if length is None else length - others
    if classes is None or classes < 1 or facts.classes not in (None, classes):
        return None
    return OutputLayout(decoder, classes=classes)


def _queries(decoder: Decoder, facts: OutputFacts) -> OutputLayout | None:
    """Finds logits and boxes by their names, or else by the four numbers of a box."""
    if len(facts.outputs) != 2 or any(len(tensor.shape) != 3 for tensor in facts.outputs):
        return None
    named = [place for place, tensor in enumerate(facts.outputs) if any(name in tensor.name for name in _BOX_NAMES)]
    of_four = [place for place, tensor in enumerate(facts.outputs) if tensor.shape[2] == 4]
    places = named if len(named) == 1 else of_four
    if len(places) != 1 or facts.outputs[places[0]].shape[2] not in (4, None):
        return None
    boxes, logits = places[0], 1 - places[0]
    classes = facts.outputs[logits].shape[2]
    if classes is not None and decoder is Decoder.DETR_SOFTMAX:
        classes -= 1
    return OutputLayout(decoder, (logits, boxes), classes or facts.classes)


def _selected(facts: OutputFacts) -> OutputLayout | None:
    """Finds boxes, labels and scores by their shapes and dtypes, or else by the names of labels and scores."""
    ranks = [len(tensor.shape) for tensor in facts.outputs]
    if len(ranks) != 3 or sorted(ranks) not in ([1, 1, 2], [2, 2, 3]):
        return None
    boxes = ranks.index(max(ranks))
    others = [place for place in range(3) if place != boxes]
    labels = [place for place in others if facts.outputs[place].dtype in (torch.int64, torch.int32)]
    if len(labels) != 1:
        names = ("label", "class", "cls")
        labels = [place for place in others if any(name in facts.outputs[place].name for name in names)]
    if len(labels) != 1 or facts.outputs[boxes].shape[-1] not in (4, None):
        return None
    scores = next(place for place in others if place != labels[0])
    floats = facts.outputs[boxes].dtype.is_floating_point and facts.outputs[scores].dtype.is_floating_point
    return OutputLayout(Decoder.TORCHVISION, (boxes, labels[0], scores), facts.classes) if floats else None


def has_names_of_detr(facts: OutputFacts) -> bool:
    """Whether one of two outputs is called like the boxes of a DETR, and the other like its logits."""
    names = sorted(tensor.name for tensor in facts.outputs)
    return names in (["dets", "labels"], ["logits", "pred_boxes"], ["pred_boxes", "pred_logits"])
