"""Features of regions of a map, all resampled to one size (paper 004, ROIAlign, §3.1.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from split_infer_ros.buffers.host_arrays import to_host
from split_infer_ros.errors import ConfigurationError

MAX_SIDE = 100  # the longest side of a region, in longer sides of the map


def roi_align(
    features: Tensor,
    regions: Tensor,
    images: Tensor,
    output_size: tuple[int, int],
    *,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """Interpolates the features of R regions of a feature map to one size.

    torchvision's kernels do the work, in float32 for types of 16 bits. No other kernels are known to be faster on
    either device. Outside the map, features are 0. An inverted region is treated as an empty one, because torchvision's
    kernel for CPUs can fail on it. An empty region has the size of a cell unless ``aligned``.

    On a GPU, the regions stay there. The host waits only for their smallest and largest numbers, which it checks.

    Args:
        features: floating (N, C, H, W).
        regions: floating (R, 4), left, top, right, bottom in the input's pixels; finite.
        images: int64 (R,), the image in which each region lies, 0..N-1.
        output_size: rows and columns of a region's features.
        spatial_scale: cells of the map per pixel of the input.
        sampling_ratio: samples per cell of the output in each direction. With -1, there is one for each cell of the map
            that a cell of the output covers.
        aligned: whether pixels are areas instead of points. Half a cell is then subtracted from the regions' corners,
            which is correct.

    Returns:
        (R, C, rows, columns), of the features' type.

    Raises:
        ConfigurationError: the shapes do not fit, an image does not exist, or a region is not finite. A region more
            than 100 times as long as the map is refused as well, because sampling it would take too long.
    """
    import torchvision.ops  # only here: the import takes seconds, and only one detector of torchvision's needs it

    if features.ndim != 4 or regions.shape != (len(images), 4) or images.ndim != 1:
        raise ConfigurationError(
            f"features {tuple(features.shape)}, regions {tuple(regions.shape)} and images {tuple(images.shape)} do not "
            f"fit: they are (N, C, H, W), (R, 4) and (R,)."
        )
    if min(output_size) < 1:
        raise ConfigurationError(f"output_size is {output_size}; rows and columns must be 1 or more.")
    if not 0 < spatial_scale < math.inf:
        raise ConfigurationError(f"spatial_scale is {spatial_scale}; it must be a positive number.")
    checked_rows = _rows_on_device if features.is_cuda else _rows_on_host
    rows = checked_rows(regions, images, features=features, spatial_scale=spatial_scale)
    wide = features.to(torch.float32) if features.itemsize < 4 else features
    pooled: Tensor = torchvision.ops.roi_align(
        wide,
        rows.to(wide),
        output_size=list(output_size),
        spatial_scale=spatial_scale,
        sampling_ratio=sampling_ratio,
        aligned=aligned,
    )
    return pooled.to(features.dtype)


def _rows_on_host(regions: Tensor, images: Tensor, *, features: Tensor, spatial_scale: float) -> Tensor:
    """Checks regions and returns them as torchvision takes them, (R, 5). NumPy's steps cost least on a CPU."""
    rows = np.empty((len(regions), 5), np.float64 if regions.itemsize > 4 else np.float32)
    rows[:, 0], rows[:, 1:] = to_host(images), to_host(regions)
    if len(rows):
        minima, maxima = rows.min(0).tolist(), rows.max(0).tolist()
        longest = lambda: float((rows[:, 3:] - rows[:, 1:3]).max())  # noqa: E731 - rarely called
        _check(minima, maxima, longest, features=features, spatial_scale=spatial_scale)
        np.maximum(rows[:, 1:3], rows[:, 3:], out=rows[:, 3:])
    return torch.from_numpy(rows)


def _rows_on_device(regions: Tensor, images: Tensor, *, features: Tensor, spatial_scale: float) -> Tensor:
    """Does what ``_rows_on_host`` does, on a GPU. Only eleven numbers come to the host, in one transfer."""
    dtype = torch.float64 if regions.itemsize > 4 else torch.float32
    corners = regions.to(features.device, dtype)
    rows = torch.cat([images.to(corners).unsqueeze(1), corners], dim=1)
    if len(rows):
        longest = (rows[:, 3:] - rows[:, 1:3]).amax()
        *bounds, side = torch.cat([rows.amin(0), rows.amax(0), longest.unsqueeze(0)]).tolist()
        _check(bounds[:5], bounds[5:], lambda: side, features=features, spatial_scale=spatial_scale)
        rows[:, 3:] = rows[:, 3:].maximum(rows[:, 1:3])
    return rows


def _check(
    minima: Sequence[float],
    maxima: Sequence[float],
    longest: Callable[[], float],
    *,
    features: Tensor,
    spatial_scale: float,
) -> None:
    """Refuses regions that are outside the batch, not finite or far too large.

    The minimum and maximum of each column suffice, because NaN and infinities show in them.

    Args:
        minima, maxima: the least and the greatest image, left, top, right and bottom of all regions.
        longest: returns the longest side of a region, in pixels.
        features: (N, C, H, W).
        spatial_scale: cells of the map per pixel.
    """
    if minima[0] < 0 or maxima[0] >= len(features):
        raise ConfigurationError(
            f"regions lie in images {minima[0]:g} to {maxima[0]:g}; there are {len(features)}, from 0."
        )
    if not math.isfinite(sum(minima) + sum(maxima)):
        raise ConfigurationError("a region has a corner that is NaN or infinite; corners are numbers of pixels.")
    max_side = MAX_SIDE * max(features.shape[2:]) / spatial_scale
    if max(maxima[3] - minima[1], maxima[4] - minima[2]) > max_side:  # an upper bound of all sides
        side = longest()
        if side > max_side:
            raise ConfigurationError(
                f"a region is {side * spatial_scale:.3g} cells of the map long; it may be at most {MAX_SIDE} times as "
                f"long as the map."
            )
