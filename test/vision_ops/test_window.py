"""The arithmetic of a convolution's window."""

from __future__ import annotations

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn import functional

from split_infer_ros.vision_ops.window import window_places

SMALL = st.integers(1, 5)


@given(size=st.integers(1, 20), kernel=SMALL, stride=SMALL, padding=st.integers(0, 4), dilation=SMALL)
def test_places_are_those_of_torch(size: int, kernel: int, stride: int, padding: int, dilation: int) -> None:
    assume(size + 2 * padding >= dilation * (kernel - 1) + 1)
    x, weight = torch.zeros(1, 1, size), torch.zeros(1, 1, kernel)
    expected = functional.conv1d(x, weight, stride=stride, padding=padding, dilation=dilation).shape[2]
    assert window_places(size, kernel=kernel, stride=stride, padding=padding, dilation=dilation) == expected
