"""What a user says about an ONNX file, where the file does not say it itself."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from enum import Enum

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.recipe import Recipe

AUTO = "auto"
MAX_SIDE = 8192  # pixels of an input's side

_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")


class Decoder(str, Enum):
    """How the outputs of an ONNX file are read. N is the batch, and n counts boxes."""

    YOLOV8 = "yolov8"
    YOLOV5 = "yolov5"
    YOLOX = "yolox"
    END_TO_END = "end_to_end"
    DETR = "detr"
    DETR_SOFTMAX = "detr_softmax"
    RTDETR = "rtdetr"
    RTDETR_END_TO_END = "rtdetr_end_to_end"
    TORCHVISION = "torchvision"
    CLASSIFIER = "classifier"


LAYOUTS = {
    Decoder.YOLOV8: "(N, 4 + classes, n)",
    Decoder.YOLOV5: "(N, n, 5 + classes)",
    Decoder.YOLOX: "(N, n, 5 + classes) with one box a cell",
    Decoder.END_TO_END: "(N, n, 6): corners, score, class",
    Decoder.DETR: "logits (N, n, classes) and boxes (N, n, 4)",
    Decoder.DETR_SOFTMAX: "logits (N, n, classes + 1) and boxes (N, n, 4)",
    Decoder.RTDETR: "(N, n, 4 + classes) with boxes in 0..1",
    Decoder.RTDETR_END_TO_END: "(N, n, 6) with boxes in 0..1, score, class",
    Decoder.TORCHVISION: "boxes (N, n, 4), labels (N, n) and scores (N, n)",
    Decoder.CLASSIFIER: "(N, classes)",
}


@dataclass(frozen=True, slots=True)
class OnnxOptions:
    """Overrides what an ONNX file says, or what follows from its outputs.

    Attributes:
        decoder: a value of ``Decoder``, or ``auto``.
        labels: a file with the names of the classes; empty for those in the file's metadata.
        input_size: ``HEIGHTxWIDTH`` of an input whose size the file leaves open; empty for the size in the metadata.
        preprocessing: a text that ``Recipe.parse`` reads, or ``auto`` for what suits the decoder.

    Raises:
        ConfigurationError: a value is unknown.
    """

    decoder: str = AUTO
    labels: str = ""
    input_size: str = ""
    preprocessing: str = AUTO

    def __post_init__(self) -> None:
        decoders = [AUTO, *(decoder.value for decoder in Decoder)]
        if self.decoder not in decoders:
            raise ConfigurationError(f"decoder '{self.decoder}' is unknown; it takes one of: {', '.join(decoders)}.")
        if self.preprocessing != AUTO:
            Recipe.parse(self.preprocessing)
        if self.input_size:
            parse_size(self.input_size)

    @property
    def given(self) -> list[str]:
        """The names of the options that are not at their defaults."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]


def parse_size(text: str) -> tuple[int, int]:
    """Returns height and width of ``HEIGHTxWIDTH``, such as ``480x640``.

    Raises:
        ConfigurationError: the text is no such size.
    """
    match = _SIZE.fullmatch(text)
    height, width = (int(match[1]), int(match[2])) if match else (0, 0)
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
        raise ConfigurationError(
            f"input_size '{text}' is no size; it takes HEIGHTxWIDTH in pixels, 1 to {MAX_SIDE} each, such as 480x640."
        )
    return height, width
