"""Layers that wait for their weights, and say when they are done with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from split_infer_ros.engines.fusion import FusedConv2d


class Gate(Protocol):
    """Knows which steps' weights are there."""

    def begin(self, step: int) -> object:
        """Wait for a step's weights."""

    def end(self, step: int) -> None:
        """A step is done with its weights."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A layer's weights, or some rows of them; they are there between a step's begin and end alone."""

    step: int
    row: int
    weight: Tensor
    bias: Tensor | None


class StreamedLayer(nn.Module):
    """Any layer as it is."""

    def __init__(self, layer: nn.Module, step: int, gate: Gate) -> None:
        super().__init__()
        self._layer = layer
        self._step = step
        self._gate = gate

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """What the layer gives."""
        self._gate.begin(self._step)
        result = self._layer(*inputs, **options)
        self._gate.end(self._step)
        return result


class TiledConv2d(nn.Module):
    """A fused convolution, output channels tile by tile."""

    def __init__(self, layer: FusedConv2d, tiles: Sequence[Tile], gate: Gate) -> None:
        super().__init__()
        self._geometry, self._activation = layer.geometry, layer.activation
        self._tiles = tiles
        self._gate = gate

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C', H', W'), channels last; the same bits as the whole layer's."""
        x = x.contiguous(memory_format=torch.channels_last)
        results = []
        for tile in self._tiles:
            self._gate.begin(tile.step)
            results.append(
                torch.ops.mkldnn._convolution_pointwise(x, tile.weight, tile.bias, *self._geometry, *self._activation)
            )
            self._gate.end(tile.step)
        if len(results) == 1:
            (only,) = results
            return only  # type: ignore[no-any-return]
        return torch.cat(results, 1)


class TiledLinear(nn.Module):
    """A linear layer, rows (its outputs) tile by tile."""

    def __init__(self, tiles: Sequence[Tile], gate: Gate) -> None:
        super().__init__()
        self._tiles = tiles
        self._gate = gate
        self._outputs = tiles[-1].row + len(tiles[-1].weight)

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) to (..., outputs)."""
        results = x.new_empty((*x.shape[:-1], self._outputs))
        for tile in self._tiles:
            self._gate.begin(tile.step)
            results[..., tile.row : tile.row + len(tile.weight)] = nn.functional.linear(x, tile.weight, tile.bias)
            self._gate.end(tile.step)
        return results
