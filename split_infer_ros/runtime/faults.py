"""Distinguishes GPU errors that lose one batch from errors after which this process cannot use the GPU any more.

This module does not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import FrameError

DEVICE_LOST_EXIT = 75  # the exit code of a process that lost its GPU; in sysexits.h, 75 is a temporary failure

# Errors of CUDA's run-time API after which every call of this process fails: CUDA's numbers and messages.
STICKY = {
    214: "uncorrectable ECC error encountered",
    220: "uncorrectable NVLink error detected during the execution",
    226: "Invalid access of peer GPU memory over nvlink or a hardware error",
    700: "an illegal memory access was encountered",
    702: "the launch timed out and was terminated",
    709: "context is destroyed",
    710: "device-side assert triggered",
    714: "hardware stack error",
    715: "an illegal instruction was encountered",
    716: "misaligned address",
    717: "operation not supported on global/shared address space",
    718: "invalid program counter",
    719: "unspecified launch failure",
    721: "tensor memory not completely freed",
    810: "the MPS client has been terminated by the server",
    911: "an async error has occured in external entity outside of CUDA",
    999: "unknown error",
}
# matches "CUDA error: ...", "Triton Error [CUDA]: ..." and "cudaHostAlloc failed: ..."
_OF_CUDA = re.compile(r"\bcuda", re.IGNORECASE)


def is_sticky(error: BaseException | None) -> bool:
    """Returns whether this error or one of its causes means that the process cannot use its GPU any more.

    torch reports CUDA's error number since version 2.8. Without a number, the text decides.
    """
    return any(_is_sticky_itself(each) for each in _causes(error))


def drop_reason(error: Exception) -> DropReason:
    """Returns the drop reason for the frames of a batch that the backbone lost to ``error``."""
    if is_sticky(error):
        return DropReason.DEVICE_LOST
    return error.reason if isinstance(error, FrameError) else DropReason.BACKBONE_ERROR


def _is_sticky_itself(error: BaseException) -> bool:
    code = getattr(error, "error_code", None)
    if isinstance(code, int):
        return code in STICKY
    text = str(error)
    return bool(_OF_CUDA.search(text)) and any(message in text for message in STICKY.values())


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
