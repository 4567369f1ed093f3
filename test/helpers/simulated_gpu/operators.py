"""Runs torch's operators on the simulated GPU: views at once, and all others later in the current stream."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from simulated_gpu import copies
from simulated_gpu.tensors import GpuTensor
from simulated_gpu.trees import leaves, mapped

if TYPE_CHECKING:
    from simulated_gpu.gpu import Gpu

aten = torch.ops.aten
_EMPTY = {aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty, aten.new_empty_strided}
_INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
_UNSUPPORTED = {aten.set_, aten.resize_, aten._resize_output_}


class Simulation(TorchDispatchMode):
    """Makes a thread's tensors for ``cuda`` on the simulated GPU, and watches its accesses, while this mode is on."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(self.gpu, func, args, kwargs or {})


@dataclass(frozen=True)
class _Kind:
    """Which arguments an operator writes and whether its results are views, from its schema."""

    written: frozenset[int | str]
    is_view: bool
    is_composite: bool
    needs_values: bool


@cache
def _kind(func: Any) -> _Kind:
    schema = func._schema
    written = {
        argument.name if argument.kwarg_only else index
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    views = any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    dynamic = bool(tags & set(func.tags)) and func.overloadpacket not in _INDEXING
    return _Kind(frozenset(written), views and not written, composite, dynamic)


def dispatch(gpu: Gpu, func: Any, args: Any, kwargs: Any) -> Any:
    """Runs an operator of torch as on a machine with this GPU, and returns its result."""
    tensors = [each for each in leaves((args, kwargs)) if isinstance(each, Tensor)]
    on_gpu = any(isinstance(each, GpuTensor) for each in tensors)
    target = kwargs.get("device")
    to_gpu = target is not None and torch.device(target).type == "cuda"
    to_gpu = to_gpu or any(isinstance(each, torch.device) and each.type == "cuda" for each in args)
    if not on_gpu and not to_gpu and func is not aten.copy_.default:
        return _on_host(gpu, func, args, kwargs)
    kind = _kind(func)
    if kind.is_composite:
        with Simulation(gpu):
            found = func.decompose(*args, **kwargs)
        if found is not NotImplemented:
            return found
    if func.overloadpacket in _UNSUPPORTED:
        raise NotImplementedError(f"The simulated GPU has no {func}.")
    if func is aten.copy_.default:
        return copies.copy(gpu, *args, **kwargs)
    if func is aten._to_copy.default:
        return copies.to_copy(gpu, *args, **kwargs)
    if not on_gpu:
        return _make(gpu, func, args, kwargs)
    if func is aten._local_scalar_dense.default:
        return copies.to_host(gpu, args[0]).item()
    _check_devices(func, args, kwargs)
    if kind.is_view:
        return _view(gpu, func, args, kwargs)
    if target is not None and not to_gpu:
        return func(*_plain(args), **_plain(kwargs))  # like a tensor of the GPU's, and on the CPU
    if _needs_values(kind, func, args):
        return _with_values(gpu, func, args, kwargs)
    return _later(gpu, func, args, kwargs, kind)


def _on_host(gpu: Gpu, func: Any, args: Any, kwargs: Any) -> Any:
    if gpu.memory.has_shared:
        kind = _kind(func)
        if kind.is_composite and gpu.touches_shared((args, kwargs)):
            with Simulation(gpu):
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        if not kind.is_view:
            for index, each in [*enumerate(args), *kwargs.items()]:
                for tensor in leaves(each):
                    if isinstance(tensor, Tensor):
                        gpu.host_touches(tensor, index in kind.written)
    return func(*args, **kwargs)


def _view(gpu: Gpu, func: Any, args: Any, kwargs: Any) -> Any:
    base = next(each for each in leaves((args, kwargs)) if isinstance(each, GpuTensor))
    with torch._C._DisableTorchDispatch():
        found = func(*_plain(args), **_plain(kwargs))

    def wrap(each: Any) -> Any:
        if not isinstance(each, Tensor):
            return each
        # Some views of normal tensors are inference tensors, where that mode is on: those that change the type.
        return GpuTensor.make(gpu, each, base.keeper, base.is_inference() or each.is_inference())

    return mapped(wrap, found)


def _make(gpu: Gpu, func: Any, args: Any, kwargs: Any) -> Any:
    """Returns the result of an operator that only makes a new tensor."""
    like = func(*args, **{**kwargs, "device": torch.device("meta"), "pin_memory": False})
    made = empty(gpu, like)
    if func.overloadpacket not in _EMPTY:
        plain, on_cpu = made.plain, {**kwargs, "device": torch.device("cpu"), "pin_memory": False}
        gpu.launch(gpu.current, lambda: plain.copy_(func(*args, **on_cpu)), [(plain, True)])
    return made


def empty(gpu: Gpu, like: Tensor) -> GpuTensor:
    """Returns a new tensor with the size, strides and dtype of ``like``, in memory of the current stream."""
    nbytes = 0
    if like.numel():
        nbytes = (
            1 + sum((size - 1) * step for size, step in zip(like.shape, like.stride(), strict=True))
        ) * like.itemsize
    with gpu.lock:
        memory, keeper = gpu.allocator.allocate(nbytes, gpu.current)
    with torch._C._DisableTorchDispatch(), torch.inference_mode(False):
        plain = torch.empty(0, dtype=like.dtype).set_(memory.untyped_storage(), 0, like.size(), like.stride())
    return GpuTensor.make(gpu, plain, keeper, torch.is_inference_mode_enabled())


def _later(gpu: Gpu, func: Any, args: Any, kwargs: Any, kind: _Kind) -> Any:
    """Gives an operator to the current stream. Its results exist at once, and are filled when the work is done."""
    args, kwargs = _snapshot(gpu, args), _snapshot(gpu, kwargs)
    gpu.kernels.add((func, *(each.dtype for each in leaves((args, kwargs)) if isinstance(each, Tensor))))
    touched = []
    written: list[GpuTensor] = []
    for index, each in [*enumerate(args), *kwargs.items()]:
        for tensor in leaves(each):
            if isinstance(tensor, GpuTensor):
                touched.append((tensor.plain, index in kind.written))
                written += [tensor] if index in kind.written else []
    plain_args, plain_kwargs = _plain(args), _plain(kwargs)
    if written:
        gpu.launch(gpu.current, lambda: func(*plain_args, **plain_kwargs), touched)
        return written[0] if len(func._schema.returns) == 1 else tuple(written)
    flat, spec = tree_flatten(func(*_meta(args), **_meta(kwargs)))
    made = [empty(gpu, each) if isinstance(each, Tensor) else each for each in flat]
    outputs = [each.plain for each in made if isinstance(each, GpuTensor)]
    if func.overloadpacket not in _EMPTY:

        def run() -> None:
            found = [each for each in leaves(func(*plain_args, **plain_kwargs)) if isinstance(each, Tensor)]
            for output, value in zip(outputs, found, strict=True):
                output.copy_(value)

        gpu.launch(gpu.current, run, [*touched, *((output, True) for output in outputs)])
    return tree_unflatten(made, spec)


def _with_values(gpu: Gpu, func: Any, args: Any, kwargs: Any) -> Any:
    """Runs an operator whose result's size depends on values. torch waits for such an operator."""
    gpu.forbid(f"{func} waits for values")
    touched = [(each.plain, False) for each in leaves((args, kwargs)) if isinstance(each, GpuTensor)]
    gpu.launch(gpu.current, lambda: None, touched)
    gpu.wait_for(gpu.current)
    with torch._C._DisableTorchDispatch():
        found = func(*_plain(args), **_plain(kwargs))
    return mapped(lambda each: copies.from_values(gpu, each) if isinstance(each, Tensor) else each, found)


def _needs_values(kind: _Kind, func: Any, args: Any) -> bool:
    if func.overloadpacket in _INDEXING:
        indices = [each for each in args[1] if each is not None]
        return any(each.dtype in (torch.bool, torch.uint8) for each in indices)
    return kind.needs_values


def _check_devices(func: Any, args: Any, kwargs: Any) -> None:
    if func.overloadpacket in _INDEXING:
        if not isinstance(args[0], GpuTensor):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        return
    for each in leaves((args, kwargs)):
        if isinstance(each, Tensor) and not isinstance(each, GpuTensor) and each.dim() and each.device.type == "cpu":
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                f"({func})"
            )


def _snapshot(gpu: Gpu, tree: Any) -> Any:
    """Reads scalars on the CPU when work is given, and not when it is done."""

    def read(each: Any) -> Any:
        if isinstance(each, Tensor) and not isinstance(each, GpuTensor):
            gpu.host_touches(each, False)
            return each.clone()
        return each

    return mapped(read, tree)


def _plain(tree: Any) -> Any:
    def plain(each: Any) -> Any:
        if isinstance(each, GpuTensor):
            return each.plain
        return torch.device("cpu") if isinstance(each, torch.device) and each.type == "cuda" else each

    return mapped(plain, tree)


def _meta(tree: Any) -> Any:
    def meta(each: Any) -> Any:
        if isinstance(each, Tensor):
            return torch.empty_strided(each.size(), each.stride(), dtype=each.dtype, device="meta")
        if isinstance(each, torch.Generator):
            return None
        return torch.device("meta") if isinstance(each, torch.device) else each

    return mapped(meta, tree)
