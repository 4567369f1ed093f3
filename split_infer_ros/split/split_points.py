"""The places at which a model can be split, and which tensors cross there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from split_infer_ros.buffers.host_arrays import FLOAT32, Array, DType, Values, dtype_named, is_floating, torch_dtype
from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.errors import UnknownSplitPointError

INPUT, OUTPUT = "input", "output"


@dataclass(frozen=True, slots=True)
class SplitPoint:
    """A place between two operations of a model, where the model can be divided.

    Attributes:
        name: the block that ends there, such as ``features.16``. The two ends of a model are ``input`` and
            ``output``.
        aliases: enclosing blocks that end there too, such as ``features``.
        position: how many of the graph's nodes belong to the backbone.
        tensors: the specs of the tensors that cross, for one image.
        kept: the names of tensors that keep their dtype, whatever the backbone's precision is.
    """

    name: str
    aliases: tuple[str, ...]
    position: int
    tensors: tuple[TensorSpec, ...]
    kept: frozenset[str] = frozenset()

    @property
    def bytes_per_image(self) -> int:
        """How many bytes cross for one image."""
        return sum(spec.bytes_per_image for spec in self.tensors)

    def in_precision(self, dtype: DType) -> SplitPoint:
        """Returns this split point for a backbone that computes in ``dtype``.

        Floating-point tensors cross in ``dtype``, except those that ``kept`` names.
        """

        def in_dtype(spec: TensorSpec) -> TensorSpec:
            changes = is_floating(spec.dtype) and spec.name not in self.kept
            return replace(spec, dtype=dtype) if changes else spec

        return replace(self, tensors=tuple(map(in_dtype, self.tensors)))

    @property
    def head_inputs(self) -> tuple[TensorSpec, ...]:
        """The specs of the tensors that a head takes: floating-point tensors are float32 unless ``kept`` names them."""
        return self.in_precision(FLOAT32).tensors

    def blank_head_inputs(self, batch_size: int) -> tuple[Array, ...]:
        """Returns arrays of zeros (batch_size, ...), one for each of ``head_inputs``."""
        return tuple(np.zeros((batch_size, *spec.shape), spec.dtype) for spec in self.head_inputs)


def write_split_points(split_points: Iterable[SplitPoint]) -> list[dict[str, Any]]:
    """Returns split points in a form that can be written as JSON."""
    return [
        {
            "name": point.name,
            "aliases": point.aliases,
            "position": point.position,
            "tensors": [(spec.name, spec.shape, spec.dtype.name) for spec in point.tensors],
            "kept": sorted(point.kept),
        }
        for point in split_points
    ]


def parse_split_points(written: Iterable[Mapping[str, Any]]) -> tuple[SplitPoint, ...]:
    """Returns the split points that ``write_split_points`` wrote."""
    return tuple(
        SplitPoint(
            name=point["name"],
            aliases=tuple(point["aliases"]),
            position=point["position"],
            tensors=tuple(
                TensorSpec(name, tuple(shape), dtype_named(dtype)) for name, shape, dtype in point["tensors"]
            ),
            kept=frozenset(point["kept"]),
        )
        for point in written
    )


def choose_split_point(split_points: Sequence[SplitPoint], name: str, model: str) -> SplitPoint:
    """Returns the split point of that name or alias.

    Args:
        split_points: the split points of a model.
        name: a name or an alias.
        model: the model's name, for the error.

    Raises:
        UnknownSplitPointError: the model has no such split point. The message lists those that it has.
    """
    for point in split_points:
        if name == point.name or name in point.aliases:
            return point
    names = [point.name for point in split_points]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    raise UnknownSplitPointError(f"{model} has no split point '{name}'.{hint} It has: {', '.join(names)}.")


def kept_names(specs: Iterable[TensorSpec]) -> frozenset[str]:
    """Returns the names of tensors that keep their dtype in every precision: all that are not float32.

    Args:
        specs: the tensors of a model in fp32.
    """
    return frozenset(spec.name for spec in specs if spec.dtype != FLOAT32)


def as_specified(values: Iterable[Values], specs: Iterable[TensorSpec]) -> tuple[Values, ...]:
    """Returns arrays or tensors in the dtypes of their specs. Those that have the dtype already are not copied."""
    return tuple(_in_dtype(each, spec.dtype) for each, spec in zip(values, specs, strict=True))


def _in_dtype(values: Values, dtype: DType) -> Values:
    return values.astype(dtype, copy=False) if isinstance(values, np.ndarray) else values.to(torch_dtype(dtype))


def describe(split_points: Sequence[SplitPoint], default: SplitPoint | None = None) -> str:
    """Returns a table with a line for each tensor of each split point. A star marks the default split point."""
    width = max(len(point.name) for point in split_points)
    lines = [f"  {'split_point':<{width}}  {'bytes/image':>11}  tensors"]
    for point in split_points:
        mark = "*" if point == default else " "
        start = f"{mark} {point.name:<{width}}  {point.bytes_per_image:>11,}"
        for spec in point.tensors:
            lines.append(f"{start}  {spec.name} {spec.dtype.name} {spec.shape}")
            start = " " * len(start)
    return "\n".join(lines)
