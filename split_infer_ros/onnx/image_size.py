"""The size of the images that an ONNX file takes, as a user writes it."""

from __future__ import annotations

import re

from split_infer_ros.errors import ConfigurationError

MAX_SIDE = 8192  # pixels of an input's side

_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")


def parse_size(text: str) -> tuple[int, int]:
    """Returns height and width of ``HEIGHTxWIDTH``, such as ``480x640``.

    Raises:
        ConfigurationError: the text is no such size.
    """
    match = _SIZE.fullmatch(text)
    height, width = (int(match[1]), int(match[2])) if match else (0, 0)
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
        raise ConfigurationError(
            f"input_size '{text}' is no size; it takes HEIGHTxWIDTH in pixels, 1 to {MAX_SIDE} each, such as 480x640."
        )
    return height, width
