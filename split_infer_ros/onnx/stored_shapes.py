"""Keeps the shapes that were inferred for a graph. The inspection of a file infers them; later starts read them."""

from __future__ import annotations

from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.shapes import ValueShape, infer_shapes
from split_infer_ros.runtime.cache import cache_path, warn_if_not_kept
from split_infer_ros.runtime.cached_json import read_json, write_json

FORMAT = 1  # of the file and of the inference; a change of either raises it, and shapes are then inferred again


def stored_shapes(graph: OnnxGraph, image_shape: tuple[int, ...]) -> dict[str, ValueShape]:
    """Returns what ``infer_shapes`` returns, from the user's cache if an earlier process kept it there.

    A damaged file is ignored.

    Args:
        graph: the graph. Its first input takes the images.
        image_shape: (C, H, W) of an image.
    """
    import onnx

    path = cache_path("shapes", f"{FORMAT} {onnx.__version__} {image_shape} {graph.digest}", ".json")
    values = read_json(path)
    if values is not None:
        return {name: ValueShape(tuple(dimensions), kind) for name, (dimensions, kind) in values.items()}
    found = dict(infer_shapes(graph, image_shape))
    with warn_if_not_kept(path, "shapes are inferred again at each start"):
        write_json(path, {name: (value.dimensions, value.element_type) for name, value in found.items()})
    return found
