"""Numbers on a command line; argparse says of any other that it cannot be."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from contextlib import suppress


def whole(text: str) -> int:
    """A whole number of at least 1."""
    with suppress(ValueError):
        if (number := int(text)) >= 1:
            return number
    raise ArgumentTypeError(f"{text} is no whole number of at least 1")


def positive(text: str) -> float:
    """A number above 0, and a finite one."""
    with suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return number
    raise ArgumentTypeError(f"{text} is no number above 0")
