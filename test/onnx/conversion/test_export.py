"""What identifies the export of a traced graph."""

from __future__ import annotations

import torch
from torch import fx, nn

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.onnx.conversion.export import export_key

IMAGES = (TensorSpec("images", (3, 16, 16), FLOAT32),)


def traced(seed: int = 0) -> fx.GraphModule:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.SiLU()).eval()
    return fx.symbolic_trace(net.requires_grad_(False))


def test_the_key_tells_weights_operations_and_inputs_apart() -> None:
    part, same, other_weights, other_shape = traced(), traced(), traced(seed=1), traced()
    assert export_key(part, IMAGES) == export_key(same, IMAGES)
    assert export_key(part, IMAGES) != export_key(other_weights, IMAGES)
    assert export_key(part, IMAGES) != export_key(other_shape, (TensorSpec("images", (3, 8, 8), FLOAT32),))
    with torch.no_grad():
        next(same.parameters()).mul_(1.0001)
    assert export_key(part, IMAGES) != export_key(same, IMAGES)
