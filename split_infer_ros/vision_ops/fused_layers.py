"""Layers of two models in one launch (paper 001, §II-B, Algorithm 2). The paper calls such a launch a fused kernel."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from split_infer_ros.runtime.captures import is_recording
from split_infer_ros.runtime.device import Device
from split_infer_ros.vision_ops.implementations import ImplementationChoice, Size, run_fastest
from split_infer_ros.vision_ops.launch_limits import multiprocessor_limits, residency_rejection
from split_infer_ros.vision_ops.merged_layers import MergedLayer
from split_infer_ros.vision_ops.schedules import search_time

_log = logging.getLogger(__name__)


class _NotFused(Exception):
    """Raised instead of a fused launch that is rejected."""


class FusedLayers(nn.Module):
    """Layers of two models, which one launch computes, each for its own requests.

    On a CPU, each layer computes its inputs alone. On a GPU, each does so if that was measured to be faster. It also
    does so if programs of both layers cannot be resident on one multiprocessor together. The compiler says that once
    for each pair of shapes.

    Args:
        first, second: the two layers.

    Attributes:
        is_fused: whether one launch computed the last inputs.
    """

    def __init__(self, first: MergedLayer, second: MergedLayer) -> None:
        super().__init__()
        self.is_fused = False
        self._first, self._second = first, second
        self._rejections: dict[tuple[object, ...], str | None] = {}  # by shapes and dtypes

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the first layer of x and the second layer of y. Inputs are those of ``MergedLayer``."""
        if x.is_cuda and y.is_cuda and self._first.takes(x) and self._second.takes(y):
            implementations = {
                ImplementationChoice.PLAIN: lambda: self._alone(x, y),
                ImplementationChoice.TRITON: lambda: self._fused(x, y),
            }
            search = partial(self._search_time, x, y)
            with contextlib.suppress(_NotFused):
                return run_fastest("fused layers", x, self.sizes(x, y), implementations, search_time=search)
        return self._alone(x, y)

    def sizes(self, x: Tensor, y: Tensor) -> list[Size]:
        """Returns the sizes on which the layers' time depends, for ``run_fastest``, which takes the dtype from x."""
        return [*self._first.sizes(x), *self._second.sizes(y), str(y.dtype).removeprefix("torch.")]

    def options(self, x: Tensor, y: Tensor) -> Mapping[str, Any]:
        """Returns the keywords of ``fused`` in ``vision_ops/kernels/merged_layer.py`` for these inputs."""
        warps = max(self._first.warps(x), self._second.warps(y))
        return {"first": self._first.options(x), "second": self._second.options(y), "warps": warps}

    def _alone(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.is_fused = False
        return self._first(x), self._second(y)

    def _fused(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        from split_infer_ros.vision_ops.kernels.merged_layer import fused  # only here: Triton is optional

        self._refuse_rejected(x, y)
        one, two = fused(*self._first.arguments(x), *self._second.arguments(y), **self.options(x, y))
        self.is_fused = True
        return self._first.result_of(one), self._second.result_of(two)

    @contextlib.contextmanager
    def _search_time(self, x: Tensor, y: Tensor) -> Iterator[bool]:
        """Yields whether there is time to measure these inputs.

        Raises:
            _NotFused: the pair is rejected. Then nothing is recorded, because other pairs of similar sizes may fit.
        """
        self._alone(x, y)  # measures each layer first, which takes its time by itself
        with search_time() as has_time:
            if has_time:
                self._refuse_rejected(x, y)
            yield has_time

    def _refuse_rejected(self, x: Tensor, y: Tensor) -> None:
        """Raises ``_NotFused`` if the pair is rejected, and also if that is unknown while a graph is recorded."""
        pair = x.shape, x.dtype, y.shape, y.dtype
        if pair not in self._rejections:
            if is_recording(Device.of(x)):
                raise _NotFused
            self._rejections[pair] = self._rejection(x, y)
        if self._rejections[pair] is not None:
            raise _NotFused

    def _rejection(self, x: Tensor, y: Tensor) -> str | None:
        """Returns why the pair cannot be fused, as a sentence; None if it can."""
        from split_infer_ros.vision_ops.kernels.merged_layer import fused_resources  # only here: Triton is optional

        inputs = f"inputs of {tuple(x.shape)} and {tuple(y.shape)}"
        try:
            kernel = fused_resources((*self._first.arguments(x), *self._second.arguments(y)), **self.options(x, y))
        except Exception as error:  # a compiler can raise anything
            rejection = f"Their kernel cannot be compiled ({type(error).__name__}: {error})."
            _log.warning("Layers with %s are not fused. %s", inputs, rejection)
            return rejection
        found = residency_rejection(kernel, multiprocessor_limits(x.device))
        if found is not None:
            _log.info("Layers with %s are not fused, because they cannot be resident together. %s", inputs, found)
        return found
