"""Forms of torch's operators that write the result into given memory, without an extra pass over it.

Most operators of torch have an argument ``out``. For some of them, torch computes the result elsewhere and copies it.
This module has only operators with kernels that write to the memory directly.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

OutForm = Callable[..., object]  # takes the operator's arguments, and the memory as ``out``

aten = torch.ops.aten


def find_out_form(node: fx.Node, modules: Mapping[str, nn.Module]) -> OutForm | None:
    """Returns the form of a node's operator that writes into given memory; None if there is none.

    The form takes the arguments of the operator, and the memory as ``out``.

    Args:
        node: the node that calls the operator.
        modules: the modules of the node's graph, by path.
    """
    if node.op == "call_module":
        module = modules[str(node.target)]
        make = _MODULES.get(type(module))
        return None if make is None else make(module)
    if node.op == "call_function" and not isinstance(node.target, torch._ops.OpOverload):
        return _OF_FUNCTION.get(node.target)
    return _OF_NAME.get(_name_of(node)) if node.op in ("call_function", "call_method") else None


def is_view(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Returns whether a node usually only views its first argument in another shape, without moving elements."""
    if node.op == "call_module":
        return isinstance(modules[str(node.target)], nn.Flatten | nn.Unflatten | nn.Identity | nn.Dropout)
    if node.op == "call_function" and not isinstance(node.target, torch._ops.OpOverload):
        return node.target in _VIEW_FUNCTIONS
    return node.op in ("call_function", "call_method") and _name_of(node) in _VIEW_NAMES


def may_change_inputs(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Returns whether a node may write into one of its inputs."""
    if node.kwargs.get("inplace") or "out" in node.kwargs:
        return True
    if node.op == "call_module":
        return any(getattr(each, "inplace", False) for each in modules[str(node.target)].modules())
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    name = _name_of(node)
    return (name.endswith("_") and not name.endswith("__")) or name in _CHANGING


def _name_of(node: fx.Node) -> str:
    """Returns the name of a method, a function, or an exported graph's operator without its overload."""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target._schema.name).rpartition("::")[2]
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _relu(x: Tensor, inplace: bool = False, *, out: Tensor) -> None:
    torch.clamp_min(x, 0, out=out)  # torch's relu calls it too


def _hardtanh(x: Tensor, low: float = -1.0, high: float = 1.0, inplace: bool = False, *, out: Tensor) -> None:
    aten.hardtanh.out(x, low, high, out=out)


def _relu6(x: Tensor, inplace: bool = False, *, out: Tensor) -> None:
    aten.hardtanh.out(x, 0.0, 6.0, out=out)


def _leaky_relu(x: Tensor, slope: float = 0.01, inplace: bool = False, *, out: Tensor) -> None:
    aten.leaky_relu.out(x, slope, out=out)


def _silu(x: Tensor, inplace: bool = False, *, out: Tensor) -> None:
    aten.silu.out(x, out=out)


def _hardswish(x: Tensor, inplace: bool = False, *, out: Tensor) -> None:
    aten.hardswish.out(x, out=out)


def _gelu(x: Tensor, approximate: str = "none", *, out: Tensor) -> None:
    aten.gelu.out(x, approximate=approximate, out=out)


def _adaptive_avg_pool2d(x: Tensor, output_size: Any, *, out: Tensor) -> None:
    if output_size in (1, (1, 1), [1, 1]):
        torch.mean(x, (-2, -1), keepdim=True, out=out)  # torch does the same for this size
    else:
        aten.adaptive_avg_pool2d.out(x, output_size, out=out)


def _max_pool2d(x: Tensor, pool: nn.MaxPool2d, *, out: Tensor) -> None:
    indices = torch.empty_like(out, dtype=torch.int64)  # torch also makes them, and drops them
    aten.max_pool2d_with_indices.out(
        x, pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode, out=out, indices=indices
    )


def _linear(x: Tensor, weight: Tensor, bias: Tensor, *, out: Tensor) -> None:
    """Computes a linear layer on contiguous tensors with any number of dimensions. ``out`` must be contiguous."""
    torch.addmm(bias, x.view(-1, x.shape[-1]), weight.t(), out=out.view(-1, out.shape[-1]))


def _conv2d(x: Tensor, convolution: nn.Conv2d, *, out: Tensor) -> None:
    """Computes a convolution. Adds the bias in a separate pass, as torch does with cuDNN."""
    c = convolution
    assert c.bias is not None
    padding: Any = c.padding
    products = functional.conv2d(x, c.weight, None, c.stride, padding, c.dilation, c.groups)
    torch.add(products, c.bias.view(1, -1, 1, 1), out=out)


def _form_of_convolution(convolution: Any) -> OutForm | None:
    on_gpu = convolution.weight.device.type == "cuda"  # torch has no such form of oneDNN's convolutions
    has_form = on_gpu and convolution.bias is not None and convolution.groups == 1
    return partial(_conv2d, convolution=convolution) if has_form and convolution.padding_mode == "zeros" else None


def _form_of_linear(linear: Any) -> OutForm | None:
    return None if linear.bias is None else partial(_linear, weight=linear.weight, bias=linear.bias)


def _form_of_hardtanh(module: Any) -> OutForm:
    return partial(_hardtanh, low=module.min_val, high=module.max_val)


_MODULES: dict[type[nn.Module], Callable[[Any], OutForm | None]] = {
    nn.ReLU: lambda module: _relu,
    nn.ReLU6: _form_of_hardtanh,
    nn.Hardtanh: _form_of_hardtanh,
    nn.LeakyReLU: lambda module: partial(_leaky_relu, slope=module.negative_slope),
    nn.SiLU: lambda module: _silu,
    nn.Hardswish: lambda module: _hardswish,
    nn.GELU: lambda module: partial(_gelu, approximate=module.approximate),
    nn.Sigmoid: lambda module: torch.sigmoid,
    nn.AdaptiveAvgPool2d: lambda module: partial(_adaptive_avg_pool2d, output_size=module.output_size),
    nn.MaxPool2d: lambda module: None if module.return_indices else partial(_max_pool2d, pool=module),
    nn.Linear: _form_of_linear,
    nn.Conv2d: _form_of_convolution,
}
# For each form: the functions that it stands for, and the names of methods and of an exported graph's operators.
_FORMS: tuple[tuple[OutForm, Sequence[Any], Sequence[str]], ...] = (
    (_relu, (torch.relu, functional.relu), ("relu", "relu_")),
    (_relu6, (functional.relu6,), ()),
    (_hardtanh, (), ("hardtanh", "hardtanh_")),
    (_silu, (functional.silu,), ("silu", "silu_")),
    (_hardswish, (functional.hardswish,), ("hardswish", "hardswish_")),
    (_gelu, (functional.gelu,), ("gelu",)),
    (torch.sigmoid, (torch.sigmoid,), ("sigmoid",)),
    (torch.add, (operator.add, operator.iadd, torch.add), ("add", "add_")),
    (torch.mul, (operator.mul, operator.imul, torch.mul), ("mul", "mul_")),
    (torch.cat, (torch.cat,), ("cat",)),
    (torch.mean, (torch.mean,), ("mean",)),
    (_linear, (), ("linear",)),
    (_adaptive_avg_pool2d, (functional.adaptive_avg_pool2d,), ("adaptive_avg_pool2d",)),
)
_OF_FUNCTION: dict[Any, OutForm] = {function: form for form, functions, _ in _FORMS for function in functions}
_OF_NAME: dict[str, OutForm] = {name: form for form, _, names in _FORMS for name in names}
_VIEW_NAMES: Collection[str] = (
    *("flatten", "view", "reshape", "permute", "transpose", "squeeze", "unsqueeze", "unflatten"),
    *("contiguous", "dropout", "alias", "detach"),
)
_VIEW_FUNCTIONS: Collection[Any] = (
    *(torch.flatten, torch.reshape, torch.permute, torch.transpose, torch.squeeze, torch.unsqueeze),
    functional.dropout,
)
_CHANGING = ("iadd", "isub", "imul", "itruediv", "setitem")
