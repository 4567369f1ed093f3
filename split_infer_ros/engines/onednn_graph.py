"""Features in blocks of channels on a CPU: oneDNN lays out whole runs of operations, and fuses what follows (§3.1.1).

TorchScript is torch's only way to oneDNN's graphs. Later versions of torch advise against it and may drop it; then, as
on processors for which torch was built without, nothing is blocked.
"""

from __future__ import annotations

import copy
import logging
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from split_infer_ros.engines.agreement import WITHIN, difference
from split_infer_ros.engines.fusion import fuse_convolutions

MOST_KINDS = 3  # a full batch, a single image, and one more; each has its own copy of the weights
RUNS = 3  # one to see the shapes, one to compile, and one that packs the weights

Kind = tuple[tuple[tuple[torch.Size, tuple[int, ...]], ...], int]  # of call: shapes, strides and number of threads
Run = Callable[..., tuple[Tensor, ...]]

_log = logging.getLogger(__name__)
_compiling = threading.RLock()  # the switch is the process's


class Blocked(nn.Module):
    """A part, for float32 on a CPU, compiled for each kind of call that comes twice running, as far as there is room.

    Compiling takes up to a second. Whatever else comes has its convolutions packed (see fusion), and so has a kind
    for which compiling fails, or gives something else: oneDNN may add a convolution's result to a map in place although
    that map is still needed, so every kind is tried on random features first.

    Args:
        part: tensors to a tuple of tensors; taken over.
    """

    def __init__(self, part: fx.GraphModule) -> None:
        super().__init__()
        self._part = part.eval()
        self._packed = fx.GraphModule(part, copy.deepcopy(part.graph))
        fuse_convolutions(self._packed)
        self._compiled: dict[Kind, Run] = {}
        self._last: Kind | None = None

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """As the part; maps are given channels last, however they lie."""
        tensors = tuple(map(_channels_last, tensors))
        kind = tuple((each.shape, each.stride()) for each in tensors), torch.get_num_threads()
        run = self._compiled.get(kind)
        if run is None:
            again, self._last = kind == self._last, kind
            run = self._compile(kind, tensors) if again and len(self._compiled) < MOST_KINDS else self._packed
        return run(*tensors)

    def _compile(self, kind: Kind, tensors: tuple[Tensor, ...]) -> Run:
        with _compiling:
            if kind not in self._compiled:
                try:
                    self._compiled[kind] = _compiled(self._part, self._packed, tuple(map(_random_like, tensors)))
                except Exception as error:  # whatever a compiler does not bear
                    reason = str(error).strip().rpartition("\n")[2]  # below TorchScript's own trace
                    _log.warning("Features are not blocked, since oneDNN cannot compile them: %s", reason)
                    self._compiled[kind] = self._packed
            return self._compiled[kind]


def can_be_blocked() -> bool:
    """True if this build of torch has oneDNN's graphs."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    with _compiling, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = torch.jit.onednn_fusion_enabled()  # type: ignore[no-untyped-call]
        try:
            torch.jit.enable_onednn_fusion(True)
            return bool(torch.jit.onednn_fusion_enabled())  # type: ignore[no-untyped-call]
        finally:
            torch.jit.enable_onednn_fusion(before)


def _compiled(part: nn.Module, packed: nn.Module, tensors: tuple[Tensor, ...]) -> Run:
    """Compiled for tensors like these, which are spoilt if it changes what it is given: then its results differ."""
    expected = packed(*tensors)
    before = torch.jit.onednn_fusion_enabled()  # type: ignore[no-untyped-call]
    try:
        torch.jit.enable_onednn_fusion(True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what later versions will drop, and of shapes that become constants
            traced: Any = torch.jit.trace(part, tensors, check_trace=False, strict=False)  # type: ignore[no-untyped-call]
            traced = torch.jit.freeze(traced)
        for _ in range(RUNS):
            found = traced(*tensors)
    finally:
        torch.jit.enable_onednn_fusion(before)
    differs = difference(found, expected)
    if not differs <= WITHIN:
        raise ArithmeticError(f"results differ by {differs:.2g} of the largest; {WITHIN:g} is allowed.")
    run: Run = traced
    return run


def _random_like(tensor: Tensor) -> Tensor:
    return torch.rand_like(tensor) if tensor.is_floating_point() else tensor.clone()


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor.contiguous()
