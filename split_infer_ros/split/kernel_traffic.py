"""Counts the kernels of a traced partition, and the bytes that each of them reads and writes.

Every operation of ATen is counted as one kernel, except views, which run none. Several kernels that a library runs
inside one operation are counted as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from split_infer_ros.memory_cost.traffic import KernelTraffic

PREPROCESSING = -1  # the index of the kernel that writes the images, just before the first one of the partition
_WITHOUT_KERNELS = ("_unsafe_view", "empty", "lift_fresh", "new_empty", "sym_")  # the beginnings of their names


def kernels_of(
    part: fx.GraphModule, image_shape: tuple[int, int, int], *, item_bytes: int, count: int = 1
) -> tuple[KernelTraffic, ...]:
    """Returns the kernels of a partition in order.

    The partition runs on tensors without values, so nothing is computed. If it cannot run so, the result has a kernel
    with 0 bytes for each node that calls something.

    Args:
        part: maps images to a tuple of tensors. Its weights are on the CPU.
        image_shape: (C, H, W).
        item_bytes: the bytes of a floating-point number where the partition runs.
        count: the number of images in this run. The partition must take it.
    """
    recorder = _Recorder(item_bytes, count)
    try:
        # no_grad: composite operations are taken apart
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
            images = torch.zeros((count, *image_shape))
            with recorder:
                part(images)
    except Exception:  # a shape depends on values, or an operator has no fake version
        computing = [node for node in part.graph.nodes if node.op.startswith("call")]
        return tuple(KernelTraffic() for _ in computing)
    return tuple(recorder.kernels)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation that it sees. Tensors that are not fake are weights.

    Attributes:
        kernels: the operations so far.
    """

    def __init__(self, item_bytes: int, count: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: list[KernelTraffic] = []
        self._item_bytes, self._count = item_bytes, count
        # For each tensor, by identity: the index of the kernel that wrote it, or None for a weight. Tensors are kept
        # here, because the identity of a freed one may be used again.
        self._writers: dict[int, tuple[Tensor, int | None]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation and notes it."""
        result = func(*args, **(kwargs or {}))
        inputs = list(_tensors((args, kwargs)))
        outputs = list(_tensors(result))
        if _is_view(func):
            writers = [self._writer(each) for each in inputs]
            for each in outputs:
                self._writers[id(each)] = each, writers[0] if writers else None
        elif outputs and not func.__name__.startswith(_WITHOUT_KERNELS):
            self._note(inputs, outputs)
        return result

    def _note(self, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        index = len(self.kernels)
        weights = [each for each in inputs if self._writer(each) is None]
        activations = [each for each in inputs if self._writer(each) is not None]
        changed = {id(each) for each in outputs}
        self.kernels.append(
            KernelTraffic(
                input_bytes=sum(self._bytes(each) for each in activations if id(each) not in changed) // self._count,
                output_bytes=sum(map(self._bytes, outputs)) // self._count,
                weight_bytes=sum(map(self._bytes, weights)),
                fresh_bytes=sum(self._bytes(each) for each in activations if self._writer(each) == index - 1)
                // self._count,
            )
        )
        for each in outputs:
            self._writers[id(each)] = each, index

    def _writer(self, tensor: Tensor) -> int | None:
        """Returns the index of the kernel that wrote a tensor; None for a weight."""
        if id(tensor) in self._writers:
            return self._writers[id(tensor)][1]
        return PREPROCESSING if isinstance(tensor, FakeTensor) else None

    def _bytes(self, tensor: Tensor) -> int:
        return tensor.numel() * (self._item_bytes if tensor.is_floating_point() else tensor.element_size())


def _tensors(values: Any) -> Iterator[Tensor]:
    return (each for each in tree_leaves(values) if isinstance(each, Tensor))


@cache
def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return any(each.alias_info is not None and not each.alias_info.is_write for each in returns)
