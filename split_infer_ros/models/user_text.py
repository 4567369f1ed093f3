"""Decodes users' small text files, splits them into lines, and warns about them once."""

from __future__ import annotations

import codecs
import functools
import logging
import re
from pathlib import Path

from split_infer_ros.runtime.user_files import read_regular

# UTF-32's little-endian mark begins with that of UTF-16, so it comes first.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_LINE_END = re.compile(r"\r\n|\r|\n")  # str.splitlines also ends lines at form feeds and U+2028, which names may have
_BLANKS = " \t\r\n"


def read_text(path: Path, max_characters: int) -> str:
    """Reads a text file in UTF-8. With a byte order mark, UTF-16 and UTF-32 are read too; the mark is left out.

    Raises:
        OSError: the file cannot be read.
        ValueError: the text has more than ``max_characters`` characters, or is in another encoding. Single-byte
            encodings such as Latin-1 look alike, so the error does not name them.
    """
    max_bytes = 4 * (max_characters + 1)
    data = read_regular(path, max_bytes)
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"byte {error.start} does not decode as {encoding.removesuffix('-sig').upper()}; save the file in UTF-8"
        ) from error
    if "\0" in text:
        raise ValueError("it has zero bytes, as UTF-16 without a byte order mark has; save the file in UTF-8")
    if len(text) > max_characters:
        raise ValueError(f"it has more than {max_characters:,} characters")
    return text


def split_lines(text: str) -> list[str]:
    """Returns the lines of a text without blanks around them. Empty lines at its end are left out."""
    text = text.rstrip(_BLANKS)
    return [trimmed(line) for line in _LINE_END.split(text)] if text else []


def trimmed(name: str) -> str:
    """Returns a name without the blanks, tabs and line ends around it. Any other character is part of it."""
    return name.strip(_BLANKS)


@functools.lru_cache(maxsize=256)
def warn_once(log: logging.Logger, sentence: str) -> None:
    """Logs a sentence as a warning. A file can be read often, so a process logs the same sentence only once."""
    log.warning("%s", sentence)
