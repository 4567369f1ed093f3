"""Types of arrays on the host, and the way from tensors of any device to them. This module needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def to_host(values: Tensor | npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the values as a numpy array, without a copy if they are on the host.

    Floating numbers of 16 bits become float32, because numpy has no bfloat16.
    """
    if isinstance(values, np.ndarray):
        return values
    if values.is_floating_point() and values.itemsize < 4:
        values = values.float()
    array: npt.NDArray[Any] = values.numpy(force=True)
    return array
