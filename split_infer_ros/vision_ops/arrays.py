"""Tensors of any device as arrays on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def to_host(tensor: Tensor) -> npt.NDArray[Any]:
    """The tensor's own memory if it is on the host; numbers of 16 bits become float32, for numpy has no bfloat16."""
    if tensor.is_floating_point() and tensor.itemsize < 4:
        tensor = tensor.to(torch.float32)
    return tensor.detach().cpu().numpy()
