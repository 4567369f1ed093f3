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

    @property
    def min_agreement(self) -> float:
        """How much detections in this precision should agree with those in FP32, 0..1; see ``Agreement``."""
        return 0.97 if self is Precision.INT8 else 0.99


AUTO, AUTO_INT8 = "auto", "auto_int8"
FASTER = {  # the precisions that may replace fp32 while frames flow, by the user's choice
    AUTO: (Precision.FP16, Precision.BF16),
    AUTO_INT8: (Precision.FP16, Precision.BF16, Precision.INT8),
}
_NAMES = [precision.value for precision in Precision]
PRECISION_CHOICES = (AUTO, AUTO_INT8, *_NAMES, *(name + OR_FP32 for name in _NAMES if name != Precision.FP32.value))


def parse_precision(text: str) -> tuple[Precision, ...]:
    """Reads a user's choice, such as ``auto``, ``fp32``, ``bf16`` or ``bf16 or fp32``.

    Returns:
        The precisions in which the user lets a model start, the preferred one first. ``auto`` starts in fp32, and so
        does ``auto_int8``. See ``FASTER`` for what may follow.

    Raises:
        ConfigurationError: there is no such choice.
    """
    if text not in PRECISION_CHOICES:
        raise ConfigurationError(f"precision '{text}' is unknown; it takes one of: {', '.join(PRECISION_CHOICES)}.")
    return (Precision.FP32,) if text in FASTER else tuple(map(Precision, text.split(" or ")))
