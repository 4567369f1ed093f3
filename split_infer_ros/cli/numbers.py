"""Reads numbers from a command line. argparse turns the errors into messages for the user."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from contextlib import suppress


def whole(text: str) -> int:
    """Reads a whole number of at least 1."""
    with suppress(ValueError):
        if (number := int(text)) >= 1:
            return number
    raise ArgumentTypeError(f"{text} is no whole number of at least 1")


def positive(text: str) -> float:
    """Reads a finite number above 0."""
    with suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return number
    raise ArgumentTypeError(f"{text} is no number above 0")
