"""Repairs texts before they go to ROS, which cannot carry surrogates; see ``runtime.text``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rclpy.impl import rcutils_logger
from rclpy.impl.rcutils_logger import RcutilsLogger

from split_infer_ros.runtime.text import repair_text

# rclpy throttles each line of code that logs. This entry makes rclpy look past the logger below, at its caller.
rcutils_logger._internal_callers.append(str(Path(__file__).resolve()))


class TextLogger(RcutilsLogger):
    """A node's logger that logs any text. rclpy's own logger raises a TypeError at surrogates."""

    def log(self, message: str, *arguments: Any, **filters: Any) -> bool:
        return super().log(repair_text(str(message)), *arguments, **filters)


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
