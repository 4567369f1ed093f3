"""The precisions in which networks compute, and how users write them."""

from __future__ import annotations

import enum

from split_infer_ros.buffers.host_arrays import FLOAT16, FLOAT32, DType, bfloat16
from split_infer_ros.errors import ConfigurationError

OR_FP32 = " or fp32"  # behind a precision: partitions that cannot have it run in fp32


class Precision(enum.Enum):
    """The precision in which a network computes."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"

    @property
    def dtype(self) -> DType:
        """The dtype of tensors in this precision. For INT8 it is float32: engines quantise tensors themselves."""
        if self is Precision.BF16:
            return bfloat16()
        return FLOAT16 if self is Precision.FP16 else FLOAT32


PRECISION_CHOICES = tuple(
    text
    for precision in Precision
    for text in ((precision.value,) if precision is Precision.FP32 else (precision.value, precision.value + OR_FP32))
)


def parse_precision(text: str) -> tuple[Precision, ...]:
    """Reads a user's choice, such as ``fp32``, ``bf16`` or ``bf16 or fp32``.

    Returns:
        The precisions that the user accepts, the preferred one first.

    Raises:
        ConfigurationError: there is no such choice.
    """
    if text not in PRECISION_CHOICES:
        raise ConfigurationError(f"precision '{text}' is unknown; it takes one of: {', '.join(PRECISION_CHOICES)}.")
    return tuple(map(Precision, text.split(" or ")))
