"""Operations that compute several models just like one, if the models lie beside each other in the channels."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

ELEMENTWISE: frozenset[Any] = frozenset(
    (
        *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.SiLU, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Sigmoid, nn.Tanh),
        *(nn.GELU, nn.ELU, nn.Mish, nn.Dropout, nn.Dropout2d, nn.Identity),
        *(functional.relu, functional.relu6, functional.silu, functional.hardswish, functional.hardsigmoid),
        *(functional.gelu, functional.leaky_relu, functional.dropout, torch.relu, torch.sigmoid, torch.tanh, torch.exp),
        *("relu", "relu_", "sigmoid", "tanh", "exp", "float", "contiguous"),
    )
)
"""Kinds of modules, functions and names of methods of one tensor that treat each element alike."""

ARITHMETIC: frozenset[Any] = frozenset(
    (
        *(operator.add, operator.iadd, operator.sub, operator.isub, operator.mul, operator.imul, operator.truediv),
        *(torch.add, torch.sub, torch.mul, torch.div, "add", "add_", "sub", "mul", "mul_", "div"),
    )
)
"""Functions and names of methods of two tensors, or of a tensor and a number, that treat each element alike."""

SPATIAL: frozenset[Any] = frozenset(
    (
        *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Upsample, nn.ZeroPad2d),
        *(functional.max_pool2d, functional.avg_pool2d, functional.adaptive_avg_pool2d, functional.interpolate),
    )
)
"""Kinds of modules and functions that treat each channel of a map alike."""


def first_flattened(node: fx.Node, modules: Sequence[nn.Module]) -> int:
    """Returns the first dimension that an operation flattens; -1 if it is no flattening, or the dimension is no number.

    Args:
        node: the operation.
        modules: the module that the node calls, in each model; empty if it calls no module.
    """
    if modules:
        return modules[0].start_dim if isinstance(modules[0], nn.Flatten) else -1
    if node.target not in (torch.flatten, "flatten"):
        return -1
    first = node.args[1] if len(node.args) > 1 else node.kwargs.get("start_dim", 0)
    return first if isinstance(first, int) else -1


def joined_dimension(node: fx.Node) -> Any:
    """Returns the dimension along which a call of ``torch.cat`` joins its tensors."""
    return node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
