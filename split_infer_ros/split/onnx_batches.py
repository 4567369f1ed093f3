"""How an ONNX model takes batches: all images at once if that gives the right results, else one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from split_infer_ros.engines.agreement import MAX_DIFFERENCE, difference
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx_graphs.batch import with_batch_of_one, with_symbolic_batch
from split_infer_ros.onnx_graphs.cut import Cutter
from split_infer_ros.onnx_graphs.dataflow import Dataflow
from split_infer_ros.onnx_graphs.graph import OnnxGraph
from split_infer_ros.onnx_graphs.shapes import ValueShape, infer_shapes

SEED = 0

MakePart = Callable[[OnnxGraph], nn.Module]
"""Makes a graph executable."""


@dataclass(frozen=True, slots=True)
class PreparedGraph:
    """A graph for images of one size, with what is known of it.

    Attributes:
        graph: takes any number of images, or one at a time.
        shapes: of its values.
        dataflow: of the graph.
        note: why it takes one image at a time, in a sentence; empty if it takes any number.
    """

    graph: OnnxGraph
    shapes: dict[str, ValueShape]
    dataflow: Dataflow
    note: str = ""

    @classmethod
    def of(cls, graph: OnnxGraph, image_shape: tuple[int, ...], note: str = "") -> PreparedGraph:
        """Infers what is to be known of a graph."""
        shapes = dict(infer_shapes(graph, image_shape))
        return cls(graph, shapes, Dataflow(graph, shapes), note)

    @property
    def cutter(self) -> Cutter:
        """Cuts parts out of the graph."""
        return Cutter(self.graph, self.dataflow, self.shapes)

    def whole(self) -> OnnxGraph:
        """Returns the whole graph, whose inputs and outputs have the shapes for these images."""
        return self.cutter.cut(self.graph.name, 0, len(self.dataflow.nodes))


def prepare_batches(graph: OnnxGraph, image_shape: tuple[int, ...], make: MakePart) -> PreparedGraph:
    """Makes a graph take batches, and compares its results with those of single images.

    Args:
        graph: as its file holds it. Its batch may be fixed to 1.
        image_shape: (C, H, W).
        make: makes a graph executable.

    Raises:
        ConfigurationError: the graph takes another fixed number of images, or does not run at all.
    """
    fixed = graph.inputs[0].shape[0]
    if fixed not in (None, 1):
        raise ConfigurationError(
            f"{graph.name} takes {fixed} images at a time and no other number; export it with a batch of 1, or with a "
            "symbolic one."
        )
    single = PreparedGraph.of(
        graph if fixed else with_batch_of_one(graph),
        image_shape,
        f"{graph.name} gives other results for several images at once than for each alone, so the images of a batch "
        "run one by one.",
    )
    symbolic = graph if fixed is None else with_symbolic_batch(graph, image_shape)
    if symbolic is None:
        return single
    several = PreparedGraph.of(symbolic, image_shape)
    images = _example_images(image_shape)
    with torch.inference_mode():
        try:
            expected = _run_each(make(single.whole()), images)
        except ConfigurationError:
            raise
        except Exception as error:  # an engine's errors have no common class
            reason = str(error).partition("\n")[0]
            shape = (1, *image_shape)
            raise ConfigurationError(f"{graph.name} does not run on images float32 {shape}: {reason}") from error
        try:
            found = make(several.whole())(images)
        except Exception:
            return single
    return several if _agree(found, expected) else single


def _run_each(part: nn.Module, images: Tensor) -> list[tuple[Tensor, ...]]:
    return [tuple(part(image[None])) for image in images]


def _agree(found: Sequence[Tensor], expected: Sequence[Sequence[Tensor]]) -> bool:
    """Returns whether each output for several images is that of single images, one behind the other.

    Detections of an image may come in another order: equal scores are in no order.
    """
    for output, rows in zip(found, zip(*expected, strict=True), strict=True):
        if any(not row.dim() or len(row) != 1 or row.shape[1:] != output.shape[1:] for row in rows):
            return False
        joined = torch.cat(rows)
        if joined.shape != output.shape or output.dtype != joined.dtype:
            return False
        pairs = [(output, joined), (_in_order(output), _in_order(joined))]
        if not any(difference([one.double()], [other.double()]) <= MAX_DIFFERENCE for one, other in pairs):
            return False
    return True


def _in_order(output: Tensor) -> Tensor:
    """Returns each image's values in order, along the dimension behind the batch."""
    return output.sort(1).values if output.dim() > 1 else output


def _example_images(image_shape: tuple[int, ...]) -> Tensor:
    """Returns two different images, float32 (2, C, H, W): fine and coarse noise."""
    random = torch.Generator().manual_seed(SEED)
    images = torch.rand((2, *image_shape), generator=random)
    coarse = torch.rand((1, image_shape[0], 3, 3), generator=random)
    images[1:] = nn.functional.interpolate(coarse, image_shape[1:], mode="bilinear")
    return images
