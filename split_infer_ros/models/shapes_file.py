"""What is known of the ``shapes`` detector without torch: its labels, its sizes, and its ONNX file.

The network is in ``models.shapes``. scripts/export_shapes.py exports it to the ONNX file.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.onnx_options import OnnxOptions

NAME = "shapes"
SUMMARY = "finds circles, squares and triangles; its weights are part of this package"
LABELS = ("circle", "square", "triangle")
STRIDE = 8  # pixels of a cell's side
DEFAULT_SPLIT_POINT = "neck"
WEIGHTS = Path(__file__).parent / "data" / "shapes.safetensors"
FILE = WEIGHTS.with_suffix(".onnx")
CLASSES, BOXES = "head_classes", "head_boxes"  # the outputs, under the names that torch gives them

OPTIONS = OnnxOptions(
    decoder=f"boxes={BOXES},scores={CLASSES},rows=maps,encoding=cells,strides={STRIDE},offset=0.5,activation=sigmoid",
    preprocessing="stretch,smooth,mean=0.5,std=0.25",
)
"""How the outputs of the ONNX file are decoded, and how images become its input."""


def is_shapes_file(name: str) -> bool:
    """Whether a model's name is the path of the ONNX file of ``shapes``."""
    return name == str(FILE)


def as_shapes(entry: ModelEntry) -> ModelEntry:
    """Returns the entry of the ONNX file with the name, summary and default split point of torch's network.

    Partitions made of the file then fit together with partitions made of the network.
    """
    return replace(entry, name=NAME, summary=SUMMARY, default_split_point=DEFAULT_SPLIT_POINT)
