"""The memory formats in which segments of a network take and return features."""

from __future__ import annotations

from enum import Enum

from split_infer_ros.engines.execution_config import Convolutions


class MemoryFormat(Enum):
    """How the features of a segment lie in memory. Records hold the value.

    - ``CONTIGUOUS``: one channel after another.
    - ``CHANNELS_LAST``: all channels of a pixel together.
    - ``ANY``: both at once. Features with one pixel or one channel are like this.
    - ``MIXED``: maps with different formats, or other strides.
    """

    CONTIGUOUS = "contiguous"
    CHANNELS_LAST = "channels_last"
    ANY = "any"
    MIXED = "mixed"


def format_of(convolutions: Convolutions) -> MemoryFormat:
    """Returns the memory format in which a kind of convolutions takes features.

    Also convolutions in blocks of channels take and return features in channels last. Inside a segment, oneDNN converts
    the features to its blocks and back.
    """
    return MemoryFormat.CONTIGUOUS if convolutions is Convolutions.CONTIGUOUS else MemoryFormat.CHANNELS_LAST


def needs_conversion(given: MemoryFormat, taken: MemoryFormat) -> bool:
    """Returns whether features in the format ``given`` must be converted for a segment that takes ``taken``."""
    return given is not taken and given is not MemoryFormat.ANY
