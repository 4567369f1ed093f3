"""Asks cv_bridge, if it is installed, about encodings that the package's own table lacks.

A camera chooses the name of its encoding, and a crash of cv_bridge would end the node. So this module is careful:
- cv_bridge matches names with ``std::regex``, which overflows the stack at long names. So it gets short names only.
- Its conversion of colours ends the process if cv_bridge was built for another NumPy. A child process tries that first.
- It reads some padded rows and, with NumPy 2, big-endian samples wrongly. So it gets neither.
"""

from __future__ import annotations

import array
import os
import re
import subprocess
import sys
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import Image

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ImageError
from split_infer_ros.images import decoders
from split_infer_ros.images.encodings import BGR, GREY, RGB, Encoding, unknown_encoding
from split_infer_ros.runtime.python_child import python_command
from split_infer_ros.runtime.search_path import child_environment

TRIAL = "split_infer_ros.nodes.cv_bridge_trial"
TRIAL_TIMEOUT_S = 30.0

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")

# OpenCV's names of types, such as 16SC1. They give the type of the numbers but not their meaning.
_NUMBER_TYPE = re.compile(r"(?:8U|8S|16U|16S|32S|32F|64F)(?:C(\d+))?")


def find_encoding(name: str) -> Encoding:
    """Asks cv_bridge for an encoding that is not in the package's own table.

    cv_bridge converts encodings that name colours. For OpenCV's types it has no conversion to colours; it only gives
    the type of the numbers. One channel (like 16UC1) is read as a measurement. 3 or 4 channels of unsigned numbers
    (like 8UC3) are read as colours, blue first.

    Raises:
        ImageError: ``unknown_encoding``: cv_bridge is not installed, or cannot read the encoding. The error repeats
            what cv_bridge said.
    """
    if not _PLAIN_NAME.fullmatch(name):
        raise unknown_encoding(name, "is not supported, and cv_bridge is asked only about short plain names")
    found = _ask(name)
    if isinstance(found, str):
        raise unknown_encoding(name, found)
    return found


def forget_answers() -> None:
    """Forgets what cv_bridge answered, and whether it is installed. The next look-up asks it again."""
    _bridge.cache_clear()
    _ask.cache_clear()


def conversion_problem(name: str, pixel_bytes: int) -> str | None:
    """Tries in a child process whether cv_bridge can convert an encoding to colours.

    Args:
        name: the encoding's name.
        pixel_bytes: bytes per pixel of the encoding.

    Returns:
        What went wrong; None if the conversion worked.
    """
    command = [*python_command(TRIAL), name, str(pixel_bytes)]
    environment = {**os.environ, **child_environment()}
    try:
        trial = subprocess.run(
            command, capture_output=True, text=True, timeout=TRIAL_TIMEOUT_S, check=False, env=environment
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return str(error)
    if trial.returncode < 0:
        return f"it crashed with signal {-trial.returncode}; was it built for another NumPy?"
    return trial.stderr.strip().rpartition("\n")[2] if trial.returncode else None


@lru_cache(maxsize=1)
def _bridge() -> Any:
    """Returns a CvBridge. If there is none, returns the end of a sentence that says why."""
    try:
        from cv_bridge import CvBridge

        return CvBridge()
    except ModuleNotFoundError as error:
        if error.name == "cv_bridge":
            return "is not supported, and cv_bridge, which may know it, is not installed"
        return f"is not supported, and cv_bridge, which may know it, cannot be imported ({error})"
    except Exception as error:  # parts of cv_bridge raise errors of any type
        return f"is not supported, and cv_bridge, which may know it, cannot be imported ({error})"


@lru_cache(maxsize=64)
def _ask(name: str) -> Encoding | str:
    """Returns the encoding. If there is none, returns the end of a sentence that says why."""
    bridge = _bridge()
    if isinstance(bridge, str):
        return bridge
    try:
        dtype_name, channels = bridge.encoding_to_dtype_with_channels(name)
        dtype = np.dtype(dtype_name)
    except Exception as error:
        return f"is not supported, nor does cv_bridge know it ({error})"
    number_type = _NUMBER_TYPE.fullmatch(name)
    if number_type is not None:
        # cv_bridge wraps numbers of channels: it reads 8UC513 as 8UC1.
        return _numbers(dtype, channels if channels == int(number_type[1] or 1) else 0)
    pixel_bytes = int(channels) * dtype.itemsize
    problem = conversion_problem(name, pixel_bytes)
    if problem is not None:
        return f"is not supported, and cv_bridge cannot convert it to colours here ({problem})"
    return Encoding(int(channels), RGB, partial(_convert, name=name), dtype=dtype)


def _numbers(dtype: np.dtype[Any], channels: int) -> Encoding | str:
    """Returns an encoding that reads bare numbers. If there is none, returns the end of a sentence that says why."""
    if channels == 1:
        return Encoding(1, GREY, None if dtype == np.uint8 else decoders.stretch_contrast, dtype=dtype)
    if channels in (3, 4) and dtype == np.uint8:
        return Encoding(channels, BGR)
    if channels in (3, 4) and dtype == np.uint16:
        return Encoding(channels, BGR, decoders.scale_full_range, dtype=dtype)
    return "is not supported, and cv_bridge, which knows its numbers, does not know their colours"


def _convert(samples: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Lets cv_bridge convert samples (height, width, channels) in this machine's byte order to RGB (height, width, 3).

    Raises:
        ImageError: ``corrupt_image``: cv_bridge raised an error, or returned another shape or dtype.
    """
    height, width, channels = samples.shape
    message = Image(height=height, width=width, encoding=name, step=width * channels * samples.itemsize)
    message.is_bigendian = int(sys.byteorder == "big")
    message.data = array.array("B", samples.tobytes())
    try:
        pixels = np.ascontiguousarray(_bridge().imgmsg_to_cv2(message, "rgb8"))
    except Exception as error:
        raise ImageError(
            DropReason.CORRUPT_IMAGE, f"cv_bridge could not convert an image of encoding '{name}': {error}."
        ) from error
    if pixels.dtype != np.uint8 or pixels.shape != (height, width, 3):
        raise ImageError(
            DropReason.CORRUPT_IMAGE,
            f"cv_bridge made {pixels.dtype} {pixels.shape} of an image of encoding '{name}'; "
            f"it should be uint8 {(height, width, 3)}.",
        )
    return pixels
