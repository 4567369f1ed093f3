"""The arithmetic of a convolution's window."""

from __future__ import annotations


def window_places(size: int, *, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Returns how many places a window has along one side of a map: the size of the result.

    Args:
        size: the map's size along that side, in pixels.
        kernel, stride, padding, dilation: the convolution's numbers along that side.
    """
    reach = dilation * (kernel - 1) + 1
    return (size + 2 * padding - reach) // stride + 1
