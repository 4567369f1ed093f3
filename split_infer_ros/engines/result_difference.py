"""Measures how far the results of two executions of one network differ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from split_infer_ros.buffers.host_arrays import Values, is_floating, to_host

# Engines compute sigmoid and similar functions more coarsely than torch. In an untrained EfficientNet-B2, torch's
# results differ from the exact ones. ONNX Runtime's differ from torch's 3.3 times as much, and OpenVINO's 4.3 times.
MAX_ROUNDING_RATIO = 10
MAX_LOW_PRECISION_RATIO = 4  # the same in 16 bits
MAX_ROUNDING = 1e-2  # rounding explains no larger difference
MAX_DIFFERENCE = 1e-4  # share of the largest expected value; above it, float32 results do not agree
MAX_LOW_PRECISION_DIFFERENCE = 0.02  # the same in 16 bits, unless torch's own rounding explains more


def difference(found: Sequence[Values], expected: Sequence[Values]) -> float:
    """Returns the largest relative difference between found and expected arrays or tensors of the same shapes.

    A difference between two elements is divided by the largest finite magnitude in the expected array, or by 1 if that
    is larger. The result is NaN or infinite if one array has a NaN or an infinity where the other has another value.
    """
    differences = [_difference(one, other) for one, other in zip(found, expected, strict=True) if 0 not in other.shape]
    return float(np.max([0.0, *differences]))  # Python's max loses NaN


def _difference(found_values: Values, expected_values: Values) -> float:
    found, expected = to_host(found_values), to_host(expected_values)
    equal = found == expected
    if is_floating(found.dtype) and is_floating(expected.dtype):
        equal |= np.isnan(found) & np.isnan(expected)
    found, expected = found.astype(np.float64), expected.astype(np.float64)  # uint8 could not hold differences
    with np.errstate(invalid="ignore"):  # inf - inf is NaN, which is right unless ``equal`` holds
        largest = max(float(np.nan_to_num(np.abs(expected), nan=0.0, posinf=0.0, neginf=0.0).max()), 1.0)
        return float(np.where(equal, 0.0, np.abs(found - expected) / largest).max())
