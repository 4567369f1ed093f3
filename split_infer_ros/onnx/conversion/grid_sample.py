"""Adds an operator to onnx2torch that it lacks and detectors of the DETR family need: GridSample."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

VERSION = 16  # the operator's version in which its modes have torch's names


class GridSample(nn.Module):
    """Reads images at places that lie between their pixels.

    Args:
        mode: how pixels are weighted: ``bilinear``, ``nearest`` or ``bicubic``.
        padding_mode: what lies around an image: ``zeros``, ``border`` or ``reflection``.
        align_corners: whether -1 and 1 are the centres of the outermost pixels; else -1 and 1 are the image's edges.
    """

    def __init__(self, mode: str, padding_mode: str, align_corners: bool) -> None:
        super().__init__()
        self._mode, self._padding_mode, self._align_corners = mode, padding_mode, align_corners

    def forward(self, images: Tensor, places: Tensor) -> Tensor:
        """Maps images (N, C, H, W) and places (N, h, w, 2) in -1..1 to (N, C, h, w)."""
        return torch.nn.functional.grid_sample(
            images, places, self._mode, self._padding_mode, align_corners=self._align_corners
        )


def add_missing_operators() -> None:
    """Adds GridSample to onnx2torch's registry, unless onnx2torch already has it."""
    from onnx2torch.node_converters import registry
    from onnx2torch.utils.common import OperationConverterResult, onnx_mapping_from_node

    try:
        registry.get_converter("GridSample", VERSION)
    except NotImplementedError:
        pass
    else:
        return

    @registry.add_converter("GridSample", VERSION)  # type: ignore[untyped-decorator]
    def convert(node: Any, graph: Any) -> Any:
        options = node.attributes
        module = GridSample(
            str(options.get("mode", "bilinear")),
            str(options.get("padding_mode", "zeros")),
            bool(options.get("align_corners", 0)),
        )
        return OperationConverterResult(torch_module=module, onnx_mapping=onnx_mapping_from_node(node))
