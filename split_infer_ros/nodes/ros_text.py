"""Repairs texts before they go to ROS, which cannot carry surrogates; see ``runtime.text``. Throttles a node's log."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from rclpy.impl import rcutils_logger
from rclpy.impl.rcutils_logger import RcutilsLogger

from split_infer_ros.runtime.text import repair_text

# rclpy filters each line of code that logs. This entry makes rclpy look past the logger below, at its caller.
rcutils_logger._internal_callers.append(str(Path(__file__).resolve()))
_LOGGERS = {__file__, rcutils_logger.__file__}


class TextLogger(RcutilsLogger):
    """A node's logger that logs any text. rclpy's own logger raises a TypeError at surrogates.

    It also throttles each line of code that logs by itself. At each call, rclpy would read the caller's source file,
    even if it then logs nothing. That takes a millisecond, and a node may drop hundreds of images per second.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._logged: dict[tuple[CodeType, int], float] = {}

    def log(self, message: str, *arguments: Any, throttle_duration_sec: float | None = None, **filters: Any) -> bool:
        if throttle_duration_sec is not None:
            line, now = _calling_line(), time.monotonic()
            if now - self._logged.get(line, -math.inf) < throttle_duration_sec:
                return False
            self._logged[line] = now
        return super().log(repair_text(str(message)), *arguments, **filters)


def _calling_line() -> tuple[CodeType, int]:
    """Returns the code that called a logger, and the place in it."""
    frame = sys._getframe()
    while frame.f_code.co_filename in _LOGGERS and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def repaired(value: Any) -> Any:
    """Returns a value with its texts repaired. Messages are changed in place; lists and tuples are made anew."""
    if isinstance(value, str):
        return repair_text(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(repaired, value))
    if hasattr(value, "get_fields_and_field_types"):
        for name in value.get_fields_and_field_types():
            setattr(value, name, repaired(getattr(value, name)))
    return value


def publish_any_text(publish: Callable[[Any], None]) -> Callable[[Any], None]:
    """Returns a function that publishes messages with any text.

    It calls ``publish`` with the message. If ROS refuses a text of the message, it repairs the texts and calls again.
    """

    def repair_and_publish(message: Any) -> None:
        try:
            publish(message)
        except UnicodeEncodeError:
            publish(repaired(message))

    return repair_and_publish
