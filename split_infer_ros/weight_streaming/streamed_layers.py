"""Layers that wait for their weights before they run, and tell the supply when they no longer need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from split_infer_ros.engines.fusion import FusedConv2d


class StepHooks(Protocol):
    """Functions that are called before and after each step of a partition."""

    def begin_step(self, step: int) -> object:
        """Waits for a step's weights."""

    def end_step(self, step: int) -> None:
        """Notes that a step no longer needs its weights."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A layer's weights, or some rows of them. They are valid only from ``begin_step`` to ``end_step`` of the step.

    Attributes:
        step: the number of the step that computes with the tile.
        row: the index of the tile's first row in the layer's weights.
        weight, bias: these rows of the weights and of the bias. ``bias`` is None if the layer has none.
    """

    step: int
    row: int
    weight: Tensor
    bias: Tensor | None


class StreamedLayer(nn.Module):
    """Runs a layer unchanged on streamed weights."""

    def __init__(self, layer: nn.Module, step: int, hooks: StepHooks) -> None:
        super().__init__()
        self._layer = layer
        self._step = step
        self._hooks = hooks

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Returns the layer's results."""
        self._hooks.begin_step(self._step)
        result = self._layer(*inputs, **options)
        self._hooks.end_step(self._step)
        return result


class TiledConv2d(nn.Module):
    """Runs a fused convolution tile by tile. Each tile computes some of the output channels."""

    def __init__(self, layer: FusedConv2d, tiles: Sequence[Tile], hooks: StepHooks) -> None:
        super().__init__()
        self._geometry, self._activation = layer.geometry, layer.activation
        self._tiles = tiles
        self._hooks = hooks

    def forward(self, x: Tensor) -> Tensor:
        """Maps (N, C, H, W) to (N, C', H', W') in channels last. The bits equal those of the whole layer."""
        x = x.contiguous(memory_format=torch.channels_last)
        results = []
        for tile in self._tiles:
            self._hooks.begin_step(tile.step)
            results.append(
                torch.ops.mkldnn._convolution_pointwise(x, tile.weight, tile.bias, *self._geometry, *self._activation)
            )
            self._hooks.end_step(tile.step)
        if len(results) == 1:
            (only,) = results
            return only  # type: ignore[no-any-return]
        return torch.cat(results, 1)


class TiledLinear(nn.Module):
    """Runs a linear layer tile by tile. Each tile computes some of the outputs."""

    def __init__(self, tiles: Sequence[Tile], hooks: StepHooks) -> None:
        super().__init__()
        self._tiles = tiles
        self._hooks = hooks
        self._outputs = tiles[-1].row + len(tiles[-1].weight)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., inputs) to (..., outputs)."""
        results = x.new_empty((*x.shape[:-1], self._outputs))
        for tile in self._tiles:
            self._hooks.begin_step(tile.step)
            results[..., tile.row : tile.row + len(tile.weight)] = nn.functional.linear(x, tile.weight, tile.bias)
            self._hooks.end_step(tile.step)
        return results
