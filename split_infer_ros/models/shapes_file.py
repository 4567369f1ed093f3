"""What is known of the ``shapes`` detector without torch: its labels, its sizes, and its ONNX file.

``models.shapes`` has the network. scripts/export_shapes.py makes the file of it.
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
"""How the file is read."""


def is_shapes_file(name: str) -> bool:
    """Whether a model's name is the path of the file."""
    return name == str(FILE)


def as_shapes(entry: ModelEntry) -> ModelEntry:
    """Returns the file's entry under the network's name, so that its partitions fit those of torch."""
    return replace(entry, name=NAME, summary=SUMMARY, default_split_point=DEFAULT_SPLIT_POINT)
