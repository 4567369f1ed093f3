"""Repairs text so that it can leave this process.

A Python text may hold surrogates. ROS, terminals and OpenCV cannot handle them. Surrogates come from JSON files, which
may write a character beyond U+FFFF as a pair of surrogates. A single surrogate has no meaning. Bytes of an argument or
of a file's name that are not UTF-8 also become single surrogates.
"""

from __future__ import annotations


def repair_text(text: str) -> str:
    """Returns a text in which each pair of surrogates is the character that it stands for.

    A single surrogate becomes U+FFFD, which stands for an unreadable character.
    """
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def encode_text(text: str) -> bytes:
    """Returns the UTF-8 of a repaired text."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return repair_text(text).encode()
