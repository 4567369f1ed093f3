"""Makes an ONNX model take batches: all images at once if the results are right, else as many as the file says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import cv2
import numpy as np

from split_infer_ros.buffers.host_arrays import Array, Values, as_array
from split_infer_ros.engines.result_difference import MAX_DIFFERENCE, difference
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx.batch import with_batch_of_one, with_symbolic_batch
from split_infer_ros.onnx.dataflow import Dataflow
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.prepared_graph import PreparedGraph
from split_infer_ros.onnx.shapes import ValueShape
from split_infer_ros.runtime.shortage import says_shortage
from split_infer_ros.split.onnx_split_points import find_onnx_split_points
from split_infer_ros.split.partition_cache import Partition
from split_infer_ros.split.verdict import Verdict

SEED = 0

MakePart = Callable[[OnnxGraph], Partition]
"""Makes an executable partition of a graph."""


def prepare_batches(graph: OnnxGraph, image_shape: tuple[int, ...], make: MakePart, verdict: Verdict) -> PreparedGraph:
    """Makes a graph take batches of any size, if its results stay the same up to rounding.

    A graph with a fixed batch is rewritten, and compared with the original. A graph with a symbolic batch is compared
    with its own results for single images. The comparison is made once for each model. If the results differ, or
    cannot be compared, the graph keeps its fixed batch, or takes single images.

    Args:
        graph: the graph as its file holds it. Its batch may be fixed.
        image_shape: (C, H, W).
        make: makes a graph executable.
        verdict: has the result of an earlier comparison, if there was one. A new result is kept in it.

    Returns:
        The prepared graph. If it takes a fixed number of images, its ``note`` says why.

    Raises:
        ConfigurationError: the graph does not run at all, or gives results that cannot be divided among the images.
    """
    fixed = graph.inputs[0].shape[0]
    symbolic = graph if fixed is None else with_symbolic_batch(graph, image_shape)
    known = None if symbolic is None else verdict.read()
    if symbolic is not None and known:
        return PreparedGraph.of(symbolic, image_shape)
    if symbolic is not None and known is None:
        several = PreparedGraph.of(symbolic, image_shape)
        reference = several.for_one_image() if fixed is None else PreparedGraph.of(graph, image_shape)
        found = _compare(several, reference, make, image_shape, count=(fixed or 1) + 1)
        if found is not None:
            verdict.keep(found)
        known = found
        if found:
            return several
    own = PreparedGraph.of(with_batch_of_one(graph) if fixed is None else graph, image_shape, _note(graph.name, fixed))
    own = own if fixed in (None, 1) else _with_checked_batch(own, make, image_shape)
    return replace(own, is_settled=symbolic is None or known is not None)


def _note(name: str, fixed: int | None) -> str:
    """Says why a graph runs with a batch of its own."""
    if fixed in (None, 1):
        return (
            f"{name} gives other results for several images at once than for each alone, so the images of a batch run "
            "one by one."
        )
    return (
        f"{name} takes {fixed} images at a time and gives other results for other numbers, so a batch runs in parts of "
        f"{fixed} images. The last image is repeated where images are missing."
    )


def _compare(
    several: PreparedGraph, own: PreparedGraph, make: MakePart, image_shape: tuple[int, ...], count: int
) -> bool | None:
    """Returns whether a graph gives the same results for ``count`` images at once as in batches of its own.

    Returns None if there was too little memory for ``count`` images. Later, there may be enough.

    Raises:
        ConfigurationError: the graph does not run in batches of its own.
    """
    images = example_images(image_shape, count)
    part, fixed = make(own.whole()), count - 1
    expected = [
        _run_own(own, part, images[[min(index, count - 1) for index in range(begin, begin + fixed)]])
        for begin in range(0, count, fixed)
    ]
    try:
        found = make(several.whole())(images)
    except Exception as error:  # an engine's errors have no common class
        return None if says_shortage(f"{type(error).__name__}: {error}") else False
    return _agree(found, expected, fixed)


def _agree(found: Sequence[Array], expected: Sequence[Sequence[Array]], fixed: int) -> bool:
    """Returns whether each output for several images is that of batches of ``fixed`` images, one behind the other."""
    columns = list(zip(*expected, strict=True))
    for output, parts in zip(found, columns, strict=True):
        if any(part.shape[:1] != (fixed,) or part.shape[1:] != output.shape[1:] for part in parts):
            return False
    joined = [np.concatenate(parts)[: len(output)] for output, parts in zip(found, columns, strict=True)]
    return difference_of_rows(found, joined) <= MAX_DIFFERENCE


def _run_own(own: PreparedGraph, part: Partition, images: Array) -> tuple[Array, ...]:
    """Runs a graph on one batch of its own.

    Raises:
        ConfigurationError: the graph does not run.
    """
    try:
        return tuple(part(images))
    except ConfigurationError:
        raise
    except Exception as error:  # an engine's errors have no common class
        reason = str(error).partition("\n")[0]
        shape = (own.graph.inputs[0].shape[0], *images.shape[1:])
        raise ConfigurationError(f"{own.graph.name} does not run on images float32 {shape}: {reason}") from error


def _with_checked_batch(own: PreparedGraph, make: MakePart, image_shape: tuple[int, ...]) -> PreparedGraph:
    """Corrects the shapes of a graph, so that the batch is only where it really is.

    With a fixed batch of 4, any dimension of length 4 may be taken for the batch. The graph runs twice, with the images
    in different orders. Only in values with the batch in front, the rows change places too.

    Raises:
        ConfigurationError: the graph does not run, or an output has no batch in front.
    """
    fixed = own.graph.inputs[0].shape[0]
    assert fixed is not None
    points = find_onnx_split_points(own.graph, own.dataflow, own.shapes)
    outputs = [tensor.name for tensor in own.graph.outputs]
    crossing = [spec.name for point in points[1:] for spec in point.tensors]
    images_name = own.graph.inputs[0].name
    names = [name for name in dict.fromkeys((*outputs, *crossing)) if name != images_name]
    part, images = make(own.cutter.values(own.graph.name, names)), example_images(image_shape, fixed)
    before, after = (_run_own(own, part, each) for each in (images, np.roll(images, 1, 0)))
    shapes = dict(own.shapes)
    for name, one, other in zip(names, before, after, strict=True):
        if difference_of_rows([other], [np.roll(one, 1, 0)]) <= MAX_DIFFERENCE:
            continue
        if name in outputs:
            raise ConfigurationError(
                f"{own.graph.name} takes {fixed} images at a time, and its output {name} {tuple(one.shape)} has no row "
                "for each of them. Export it with a batch of 1, or with a symbolic one."
            )
        known = shapes[name]
        shapes[name] = ValueShape((fixed, *known.dimensions[1:]), known.element_type)
    return replace(own, shapes=shapes, dataflow=Dataflow(own.graph, shapes))


def difference_of_rows(found: Sequence[Values], expected: Sequence[Values]) -> float:
    """Returns the largest relative difference between two results for the same images. The order of rows is ignored.

    Detections with equal scores may come in any order. So if values differ by more than rounding, each image's values
    are sorted and compared again. The result is infinite if shapes or dtypes differ.

    Args:
        found, expected: the outputs of the two executions, each (N, ...).
    """
    worst = 0.0
    for one, other in zip(map(as_array, found), map(as_array, expected), strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            return math.inf
        wide = one.astype(np.float64), other.astype(np.float64)
        found_here = difference([wide[0]], [wide[1]])
        if found_here > MAX_DIFFERENCE:
            first, second = map(_in_order, wide)
            found_here = min(found_here, difference([first], [second]))
        worst = max(worst, found_here)
    return worst


def _in_order(output: Array) -> Array:
    """Returns each image's values sorted along the dimension behind the batch."""
    return np.sort(output, axis=1) if output.ndim > 1 else output


def example_images(image_shape: tuple[int, ...], count: int = 2) -> Array:
    """Returns different images, float32 (count, C, H, W) in 0..1: one of fine noise, and others of coarse noise."""
    random = np.random.default_rng(SEED)
    images = random.random((count, *image_shape), np.float32)
    _, height, width = image_shape
    for image in images[1:]:
        for channel in image:
            cv2.resize(random.random((3, 3), np.float32), (width, height), dst=channel)
    return images
