"""Limits the size of images."""

from __future__ import annotations

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ImageError

MAX_PIXELS = 7680 * 4320  # 8K; larger images are refused unless a caller allows more


def check_size(height: int, width: int, max_pixels: int) -> None:
    """Refuses an image that is empty, or has more than ``max_pixels`` pixels.

    Raises:
        ImageError: ``empty_image`` or ``too_large``.
    """
    if height < 1 or width < 1:
        raise ImageError(DropReason.EMPTY_IMAGE, f"An image of {width}x{height} pixels has nothing to look at.")
    if height * width > max_pixels:
        raise ImageError(
            DropReason.TOO_LARGE, f"An image of {width}x{height} pixels exceeds the limit of {max_pixels:,} pixels."
        )
