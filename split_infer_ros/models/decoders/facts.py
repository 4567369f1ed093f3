"""What is known about a model's outputs: the file's names and metadata, and the results of one run on an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from split_infer_ros.buffers.host_arrays import is_floating
from split_infer_ros.models.decoders.grids import count_cells
from split_infer_ros.models.decoders.layout import Part
from split_infer_ros.onnx.graph import OnnxGraph

STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32), (4, 8, 16, 32, 64), (4, 8, 16), (8, 16), (16, 32))
"""The strides of the maps of YOLO and similar networks. Each tuple has the strides of one kind of network."""

_PASSED_THROUGH = (
    *("Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze"),
    *("QuantizeLinear", "DequantizeLinear"),
)
_PROBABILITIES = ("Softmax", "Sigmoid")


@dataclass(frozen=True)
class Output:
    """One of a model's outputs.

    Attributes:
        name: the output's name in the graph.
        shape: the shape that a run on one image gave. If the model was not run, the shape that the file states, with
            None for lengths that the file leaves open.
        is_integer: whether its numbers are whole.
        values: what the run gave; None if the model was not run.
    """

    name: str
    shape: tuple[int | None, ...]
    is_integer: bool = False
    values: npt.NDArray[Any] | None = None

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def mentions(self, *words: str) -> bool:
        """Whether the name contains one of these lower-case words, in any case."""
        return any(word in self.name.lower() for word in words)

    def __str__(self) -> str:
        lengths = ", ".join("?" if length is None else str(length) for length in self.shape)
        return f"{self.name} ({lengths})"


@dataclass(frozen=True)
class OutputFacts:
    """What is known about a model and its outputs.

    Attributes:
        graph: the whole model.
        height, width: the size of its input in pixels.
        classes: how many classes have names; None if none have.
        trial: the outputs of a run on one image, float or integer (1, ...) by name; empty if the model was not run.
        inputs: the names of the file's inputs, including those that the package fills.
    """

    graph: OnnxGraph
    height: int
    width: int
    classes: int | None
    trial: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """The outputs, in the file's order."""
        found = []
        for tensor in self.graph.outputs:
            values = self.trial.get(tensor.name)
            shape = tensor.shape if values is None else values.shape
            found.append(Output(tensor.name, tuple(shape), not is_floating(tensor.dtype), values))
        return tuple(found)

    def output_of(self, part: Part | None) -> Output:
        """Returns the output that holds a part of a layout, or the first one if several do."""
        assert part is not None
        return next(output for output in self.outputs if output.name == part.outputs[0])

    def floats(self, rank: int) -> list[Output]:
        """Returns the outputs of floating numbers that have this number of dimensions."""
        return [output for output in self.outputs if output.rank == rank and not output.is_integer]

    @property
    def metadata(self) -> Mapping[str, str]:
        """The file's metadata."""
        return self.graph.metadata

    @property
    def task(self) -> str:
        """What Ultralytics' exporter says that the model does, such as ``detect``; empty in other files."""
        return self.metadata.get("task", "")

    @property
    def is_ultralytics(self) -> bool:
        """Whether Ultralytics' package exported the file."""
        return self.metadata.get("author") == "Ultralytics"

    @property
    def is_rtdetr(self) -> bool:
        """Whether Ultralytics' package exported an RT-DETR."""
        about = self.metadata.get("head", "") + self.metadata.get("description", "")
        return self.is_ultralytics and "rtdetr" in about.lower().replace("-", "")

    @property
    def suppresses_itself(self) -> bool:
        """Whether the metadata says that the network itself drops boxes that overlap better ones."""
        arguments = self.metadata.get("args", "").replace('"', "'")
        return self.metadata.get("end2end") == "True" or "'nms': True" in arguments

    def strides_of(self, count: int | None, boxes_per_cell: int = 1) -> tuple[int, ...]:
        """Returns the strides of maps that together have ``count`` boxes; empty if no such strides are known.

        Args:
            count: the number of boxes of an image; None if it is not known.
            boxes_per_cell: the number of boxes of each cell of a map.
        """
        for strides in STRIDES:
            if count == boxes_per_cell * count_cells(self.height, self.width, strides):
                return strides
        return ()

    @cached_property
    def operators(self) -> frozenset[str]:
        """The types of the graph's nodes."""
        return frozenset(self.graph.operators)

    def gives_probabilities(self, name: str) -> bool:
        """Whether an output comes from a softmax or a sigmoid, perhaps by way of operators such as Reshape or Cast."""
        makers = {str(value): node for node in self.graph.proto.graph.node for value in node.output}
        node = makers.get(name)
        while node is not None and node.op_type in _PASSED_THROUGH and node.input:
            node = makers.get(str(node.input[0]))
        return node is not None and node.op_type in _PROBABILITIES

    def __str__(self) -> str:
        return f"{self.graph.name} ({'; '.join(map(str, self.graph.outputs))})"


def classes_of(length: int | None, others: int, facts: OutputFacts) -> int | None:
    """Returns how many classes a box of ``length`` numbers has; 0 if that is impossible, None if it is not known.

    Args:
        length: how many numbers a box has; None if that is not known.
        others: how many of them are no scores of classes.
        facts: say how many classes have names.
    """
    classes = facts.classes if length is None else length - others
    if classes is None:
        return None
    return classes if classes >= 1 and facts.classes in (None, classes) else 0


def are_probabilities(values: npt.NDArray[Any] | None) -> bool:
    """Whether all values lie in 0..1, up to rounding. True as well if there are no values, or None is given."""
    if values is None or not values.size:
        return True
    numbers = np.asarray(values, np.float64)
    return bool(np.isfinite(numbers).all() and numbers.min() >= -1e-3 and numbers.max() <= 1 + 1e-3)


def rows_sum_to_one(values: npt.NDArray[Any]) -> bool:
    """Whether values (..., classes) lie in 0..1 and sum to 1 over the classes, up to rounding.

    They then are probabilities of classes that exclude each other.
    """
    numbers = np.asarray(values, np.float64)
    return bool(numbers.size) and are_probabilities(numbers) and bool(np.abs(numbers.sum(-1) - 1).max() < 1e-2)


def are_whole(values: npt.NDArray[Any]) -> bool:
    """Whether all values are whole numbers from 0 on, up to rounding."""
    numbers = np.asarray(values, np.float64)
    return bool(
        np.isfinite(numbers).all() and (np.abs(numbers - np.rint(numbers)) < 1e-2).all() and (numbers > -0.5).all()
    )


def are_corners(boxes: npt.NDArray[Any]) -> bool:
    """Whether boxes (..., 4) can be left, top, right, bottom.

    Right and bottom must not be smaller than left and top, up to rounding, and all numbers must be finite.
    """
    numbers = np.asarray(boxes, np.float64)
    return bool(np.isfinite(numbers).all() and (numbers[..., 2:] >= numbers[..., :2] - 1e-3).all())
