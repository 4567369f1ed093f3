"""How an ONNX model takes batches: all images at once if that gives the right results, else one by one."""

from __future__ import annotations

import math
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
from split_infer_ros.split.verdict import Verdict

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


def prepare_batches(graph: OnnxGraph, image_shape: tuple[int, ...], make: MakePart, verdict: Verdict) -> PreparedGraph:
    """Makes a graph take batches, and compares its results with those of single images, unless that was done before.

    Args:
        graph: as its file holds it. Its batch may be fixed to 1.
        image_shape: (C, H, W).
        make: makes a graph executable.
        verdict: of an earlier comparison, if there was one. It is kept for later ones.

    Raises:
        ConfigurationError: the graph takes another fixed number of images, or does not run at all.
    """
    fixed = graph.inputs[0].shape[0]
    if fixed not in (None, 1):
        raise ConfigurationError(
            f"{graph.name} takes {fixed} images at a time and no other number; export it with a batch of 1, or with a "
            "symbolic one."
        )
    symbolic = graph if fixed is None else with_symbolic_batch(graph, image_shape)
    known = None if symbolic is None else verdict.read()
    if symbolic is not None and known:
        return PreparedGraph.of(symbolic, image_shape)
    single = PreparedGraph.of(
        graph if fixed else with_batch_of_one(graph),
        image_shape,
        f"{graph.name} gives other results for several images at once than for each alone, so the images of a batch "
        "run one by one.",
    )
    if symbolic is None or known is False:
        return single
    several = PreparedGraph.of(symbolic, image_shape)
    found = _compare(several, single, make, image_shape)
    if found is not None:
        verdict.keep(found)
    return several if found else single


def _compare(
    several: PreparedGraph, single: PreparedGraph, make: MakePart, image_shape: tuple[int, ...]
) -> bool | None:
    """Returns whether a graph gives the same results for two images at once as for each alone.

    It is None if the graph fails on two images. That may have passing reasons, such as a lack of memory.

    Raises:
        ConfigurationError: the graph does not run on single images.
    """
    images = example_images(image_shape)
    with torch.inference_mode():
        try:
            expected = _run_each(make(single.whole()), images)
        except ConfigurationError:
            raise
        except Exception as error:  # an engine's errors have no common class
            reason = str(error).partition("\n")[0]
            shape = (1, *image_shape)
            raise ConfigurationError(f"{single.graph.name} does not run on images float32 {shape}: {reason}") from error
        try:
            found = make(several.whole())(images)
        except Exception:
            return None
    return _agree(found, expected)


def _run_each(part: nn.Module, images: Tensor) -> list[tuple[Tensor, ...]]:
    return [tuple(part(image[None])) for image in images]


def _agree(found: Sequence[Tensor], expected: Sequence[Sequence[Tensor]]) -> bool:
    """Returns whether each output for several images is that of single images, one behind the other."""
    columns = list(zip(*expected, strict=True))
    for output, rows in zip(found, columns, strict=True):
        if any(not row.dim() or len(row) != 1 or row.shape[1:] != output.shape[1:] for row in rows):
            return False
    return difference_of_rows(found, [torch.cat(rows) for rows in columns]) <= MAX_DIFFERENCE


def difference_of_rows(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Returns the largest relative difference of two results for the same images; infinite for other shapes or dtypes.

    Detections of an image may come in another order: equal scores are in no order.
    """
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            return math.inf
        pairs = [(one, other), (_in_order(one), _in_order(other))]
        worst = max(worst, min(difference([first.double()], [second.double()]) for first, second in pairs))
    return worst


def _in_order(output: Tensor) -> Tensor:
    """Returns each image's values in order, along the dimension behind the batch."""
    return output.sort(1).values if output.dim() > 1 else output


def example_images(image_shape: tuple[int, ...]) -> Tensor:
    """Returns two different images, float32 (2, C, H, W): fine and coarse noise."""
    random = torch.Generator().manual_seed(SEED)
    images = torch.rand((2, *image_shape), generator=random)
    coarse = torch.rand((1, image_shape[0], 3, 3), generator=random)
    images[1:] = nn.functional.interpolate(coarse, image_shape[1:], mode="bilinear")
    return images
