"""Keeps features in blocks of channels on a CPU: oneDNN lays out and fuses many operations together (004 §3.1.1).

TorchScript is torch's only interface to oneDNN's graphs. Later versions of torch advise against it and may drop it.
Without it, or if torch was built without oneDNN's graphs for this processor, features are not blocked.
"""

from __future__ import annotations

import copy
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from split_infer_ros.engines.fusion import fuse_convolutions
from split_infer_ros.engines.result_difference import MAX_DIFFERENCE, difference

MAX_COMPILED = 3  # a full batch, a single image, and one more; each has its own copy of the weights
WARM_UP_CALLS = 3  # the first call records the shapes, the second compiles, the third packs the weights

CallSignature = tuple[tuple[tuple[torch.Size, tuple[int, ...]], ...], int]  # shapes, strides and number of threads
Run = Callable[..., tuple[Tensor, ...]]

_log = logging.getLogger(__name__)
_compiling = threading.RLock()  # held while oneDNN's graphs are switched on for the whole process


class BlockedPart(nn.Module):
    """A part, in float32 on a CPU, that oneDNN compiles for each call signature that comes twice in a row.

    A call signature is the shapes and strides of the inputs, and the number of threads. At most ``MAX_COMPILED``
    signatures are compiled; compiling takes up to a second. All other calls run with packed convolutions (see
    ``fusion``). So do signatures for which compiling fails or gives wrong results. To find this out, every compiled
    part first runs on random features. For example, oneDNN may add a convolution's result in place to a map that is
    still needed.

    Args:
        part: maps tensors to a tuple of tensors. The caller must not use it any more.
    """

    def __init__(self, part: fx.GraphModule) -> None:
        super().__init__()
        self._part = part.eval()
        self._packed = fx.GraphModule(part, copy.deepcopy(part.graph))
        fuse_convolutions(self._packed)
        self._compiled: dict[CallSignature, Run] = {}
        self._last_call: CallSignature | None = None

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Runs the part. First makes inputs with four dimensions channels last, and others contiguous."""
        tensors = tuple(map(_channels_last, tensors))
        call = tuple((each.shape, each.stride()) for each in tensors), torch.get_num_threads()
        run = self._compiled.get(call)
        if run is None:
            is_repeated, self._last_call = call == self._last_call, call
            has_room = len(self._compiled) < MAX_COMPILED
            run = self._compile(call, tensors) if is_repeated and has_room else self._packed
        return run(*tensors)

    @property
    def num_compiled(self) -> int:
        """The number of call signatures for which oneDNN compiled the part."""
        return sum(run is not self._packed for run in self._compiled.values())

    def _compile(self, call: CallSignature, tensors: tuple[Tensor, ...]) -> Run:
        with _compiling:
            if call not in self._compiled:
                try:
                    self._compiled[call] = _compiled(self._part, self._packed, tuple(map(_random_like, tensors)))
                except Exception as error:  # a compiler may raise anything
                    reason = str(error).strip().rpartition("\n")[2]  # the last line, below TorchScript's own trace
                    _log.warning("Features are not blocked, since oneDNN cannot compile them: %s", reason)
                    self._compiled[call] = self._packed
            return self._compiled[call]


def has_onednn_graphs() -> bool:
    """Returns whether this build of torch has oneDNN's graphs."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    with _compiling, _onednn_graphs():
        return bool(torch.jit.onednn_fusion_enabled())  # type: ignore[no-untyped-call]


@contextmanager
def _onednn_graphs() -> Iterator[None]:
    """Switches oneDNN's graphs on for the whole process. Hides warnings of TorchScript."""
    before = torch.jit.onednn_fusion_enabled()  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about TorchScript's future, and about shapes that become constants
        try:
            torch.jit.enable_onednn_fusion(True)
            yield
        finally:
            torch.jit.enable_onednn_fusion(before)


def _compiled(part: nn.Module, packed: nn.Module, tensors: tuple[Tensor, ...]) -> Run:
    """Compiles a part for tensors of these shapes and strides.

    Args:
        part: the part to compile.
        packed: computes the expected results.
        tensors: inputs for the check. A compiled part that changes its inputs spoils them, so its results differ.

    Raises:
        ArithmeticError: the compiled part's results differ from the expected ones by more than ``MAX_DIFFERENCE``.
    """
    expected = packed(*tensors)
    with _onednn_graphs():
        traced: Any = torch.jit.trace(part, tensors, check_trace=False, strict=False)  # type: ignore[no-untyped-call]
        traced = torch.jit.freeze(traced)
        for _ in range(WARM_UP_CALLS):
            found = traced(*tensors)
    differs = difference(found, expected)
    if not differs <= MAX_DIFFERENCE:
        raise ArithmeticError(f"results differ by {differs:.2g} of the largest; {MAX_DIFFERENCE:g} is allowed.")
    run: Run = traced
    return run


def _random_like(tensor: Tensor) -> Tensor:
    return torch.rand_like(tensor) if tensor.is_floating_point() else tensor.clone()


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor.contiguous()
