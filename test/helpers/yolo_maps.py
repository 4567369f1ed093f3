"""Checks where the predictions of a YOLO network lie in its outputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def check_places(net: nn.Module, images: Tensor) -> tuple[Tensor, list[tuple[int, ...]]]:
    """Asserts that predictions are ordered by level, row, column and anchor, at some places of each feature map.

    Returns:
        The network's results, and the shapes of the feature maps of its heads.
    """
    maps: list[Tensor] = []
    for head in net.heads:
        head.register_forward_hook(lambda *call: maps.append(call[2]))
    with torch.inference_mode():
        raw = net(images)
    start = 0
    for feature_map in maps:
        rows, columns = feature_map.shape[2:]
        for row, column, anchor in ((0, 0, 0), (rows - 1, 0, 2), (1, columns - 1, 1)):
            place = start + 3 * (row * columns + column) + anchor
            channels = slice(85 * anchor, 85 * (anchor + 1))
            assert torch.equal(raw[:, place], feature_map[:, channels, row, column])  # a copy
        start += 3 * rows * columns
    return raw, [tuple(feature_map.shape) for feature_map in maps]
