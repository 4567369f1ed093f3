"""Features of regions, all of one size (ROIAlign, §3.1.1)."""

from __future__ import annotations

import math

import numpy as np
import torch
import torchvision.ops
from torch import Tensor

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.vision_ops.arrays import Floats, to_host

LARGEST = 100  # sides of a region in those of the map


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
    """Each region of the feature map, interpolated to one size.

    torchvision's kernels are the fastest known on both devices, so they do the work, in float32 for types of 16 bits.
    What lies outside the map is 0. A region that is inside out is taken as empty, where torchvision's kernel for CPUs
    can fail; an empty one has the size of a cell unless ``aligned``.

    Args:
        features: floating (N, C, H, W).
        regions: floating (R, 4), left, top, right, bottom in the input's pixels; finite.
        images: int64 (R,), the image in which each lies, 0..N-1.
        output_size: rows and columns of a region's features.
        spatial_scale: cells of the map per pixel of the input.
        sampling_ratio: samples a cell of the output in each direction; -1 for as many as it covers cells of the map.
        aligned: pixels are areas, not points: half a cell is subtracted, as is right.

    Returns:
        (R, C, rows, columns), of the features' type.

    Raises:
        ConfigurationError: shapes that do not fit, an image that is not there, or a region that is not finite or far
            larger than the map, which would be sampled for ever.
    """
    if features.ndim != 4 or regions.shape != (len(images), 4) or images.ndim != 1:
        raise ConfigurationError(
            f"features {tuple(features.shape)}, regions {tuple(regions.shape)} and images {tuple(images.shape)} do not "
            f"fit: they are (N, C, H, W), (R, 4) and (R,)."
        )
    if min(output_size) < 1:
        raise ConfigurationError(f"output_size is {output_size}; rows and columns are 1 or more.")
    if not 0 < spatial_scale < math.inf:
        raise ConfigurationError(f"spatial_scale is {spatial_scale}; it is a positive number.")
    rows = np.empty((len(regions), 5), np.float64 if regions.itemsize > 4 else np.float32)
    rows[:, 0], rows[:, 1:] = to_host(images), to_host(regions)
    if len(rows):
        _check(rows, features, spatial_scale)
        np.maximum(rows[:, 1:3], rows[:, 3:], out=rows[:, 3:])
    wide = features.to(torch.float32) if features.itemsize < 4 else features
    pooled: Tensor = torchvision.ops.roi_align(
        wide, torch.from_numpy(rows).to(wide), list(output_size), spatial_scale, sampling_ratio, aligned
    )
    return pooled.to(features.dtype)


def _check(rows: Floats, features: Tensor, spatial_scale: float) -> None:
    """Least and largest of each column tell nearly all: NaN and what is infinite come through."""
    least, most = rows.min(0).tolist(), rows.max(0).tolist()
    if least[0] < 0 or most[0] >= len(features):
        raise ConfigurationError(
            f"regions lie in images {least[0]:g} to {most[0]:g}; there are {len(features)}, from 0."
        )
    if not math.isfinite(sum(least) + sum(most)):
        raise ConfigurationError("a region has a corner that is NaN or infinite; corners are numbers of pixels.")
    limit = LARGEST * max(features.shape[2:]) / spatial_scale
    if max(most[3] - least[1], most[4] - least[2]) > limit:  # no region is longer than that
        side = float((rows[:, 3:] - rows[:, 1:3]).max())
        if side > limit:
            raise ConfigurationError(
                f"a region is {side * spatial_scale:.3g} cells of the map long; it is at most {LARGEST} times as long "
                f"as the map."
            )
