"""What an error of a GPU means: the batch alone is lost, or all that this process can do there. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import StreamError

DEVICE_LOST_EXIT = 75  # the exit code of the process; sysexits.h has it for failures that may pass when tried again

# Errors of CUDA's run-time API after which every call of this process fails, by number, with CUDA's words for them.
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
# "CUDA error: ...", "Triton Error [CUDA]: ...", "cudaHostAlloc failed: ..."
_OF_CUDA = re.compile(r"\bcuda", re.IGNORECASE)


def is_sticky(error: BaseException | None) -> bool:
    """Returns whether this error, or one that caused it, ends what the process can do with its GPU.

    torch tells CUDA's number since version 2.8. Where it is missing, the text decides.
    """
    return any(_sticks(each) for each in _causes(error))


def drop_reason(error: Exception) -> DropReason:
    """Returns why the frames of a batch are dropped that the backbone lost to ``error``."""
    if is_sticky(error):
        return DropReason.DEVICE_LOST
    return error.reason if isinstance(error, StreamError) else DropReason.BACKBONE_ERROR


def _sticks(error: BaseException) -> bool:
    code = getattr(error, "error_code", None)
    if isinstance(code, int):
        return code in STICKY
    text = str(error)
    return bool(_OF_CUDA.search(text)) and any(words in text for words in STICKY.values())


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
