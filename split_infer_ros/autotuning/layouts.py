"""The layouts in which segments of a network take and give features."""

from __future__ import annotations

from enum import Enum

from split_infer_ros.engines.execution_config import Convolutions


class Layout(Enum):
    """How the features of a segment lie in memory. Its value is what records say.

    - ``CONTIGUOUS``: all of a channel together, channel by channel.
    - ``CHANNELS_LAST``: all channels of a pixel together.
    - ``ANY``: both at once, as features of one pixel or of one channel do.
    - ``MIXED``: several maps that differ, or strides of another kind.
    """

    CONTIGUOUS = "contiguous"
    CHANNELS_LAST = "channels_last"
    ANY = "any"
    MIXED = "mixed"


def layout_of(convolutions: Convolutions) -> Layout:
    """Returns the layout in which a kind of convolutions takes features.

    Convolutions in blocks of channels take and give plain maps as well: oneDNN lays them out inside a segment.
    """
    return Layout.CONTIGUOUS if convolutions is Convolutions.CONTIGUOUS else Layout.CHANNELS_LAST


def needs_conversion(given: Layout, taken: Layout) -> bool:
    """Returns whether features that are given in one layout must be converted before they are taken in another."""
    return given is not taken and given is not Layout.ANY
