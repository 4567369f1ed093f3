"""Makes the entry of an ONNX file, or the reading of its outputs, from values that are kept as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from split_infer_ros.models.decoders.declaration import read_declaration, write_declaration
from split_infer_ros.models.decoders.decode import LayoutDecoder
from split_infer_ros.models.decoders.recognition import OutputReading
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.recipe import Recipe
from split_infer_ros.onnx.graph import OnnxGraph


def entry_of(described: Mapping[str, Any], graph: OnnxGraph) -> ModelEntry:
    """Returns the entry that ``OnnxFile.describe`` described.

    Args:
        described: the description.
        graph: the model's graph, as ``OnnxFile.graph`` returns it.

    Raises:
        ConfigurationError: a file of anchors cannot be read.
    """
    (height, width), names = described["size"], described["outputs"]
    layout = read_declaration(described["layout"], names, "the cache")
    return ModelEntry(
        name=described["name"],
        summary=described["summary"],
        build=lambda: graph,
        weights=None,
        preprocess=Recipe.parse(described["recipe"]).preprocess(height, width),
        labels=tuple(described["labels"]),
        default_split_point=None,
        decode=LayoutDecoder(layout, names, height, width),
        notes=tuple(described["notes"]),
        decodes_arrays=True,
    )


def write_reading(reading: OutputReading) -> dict[str, Any]:
    """Returns an ``OutputReading`` as values that can be written as JSON. ``parse_reading`` reads them."""
    return {"layout": write_declaration(reading.layout), "recipe": reading.recipe}


def parse_reading(graph: OnnxGraph, written: Mapping[str, Any]) -> OutputReading:
    """Returns the ``OutputReading`` that ``write_reading`` wrote.

    Args:
        graph: the model with the outputs.
        written: the result of ``write_reading``.

    Raises:
        ConfigurationError: the reading names outputs that the model does not have.
    """
    names = [tensor.name for tensor in graph.outputs]
    return OutputReading(read_declaration(written["layout"], names, "the cache of inspections"), str(written["recipe"]))
