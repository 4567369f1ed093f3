"""Why a frame was dropped: the registry of all reasons, from which the documents' table is made."""

from __future__ import annotations

import enum

_NO_IMAGE = "The message is no image that can be read."
_NO_WEIGHTS = "A layer's weights did not come from their file (`weights_residency`)."


class Reporter(enum.Enum):
    """Who may report a drop reason."""

    BACKBONE = "backbone"
    HEAD = "head"


class DropReason(str, enum.Enum):
    """The name under which a dropped frame is counted. Reports and messages carry its value.

    ``scripts/reference.py`` renews the documents' table after a change. Reasons with the same meaning share a row.

    Attributes:
        meaning: what happened to the frame, in Markdown.
        intended: whether somebody asked for frames to be dropped so. Other reasons count as failures in diagnostics.
        reporter: who may report it. A head in another process may report only its own reasons.
    """

    OVERRUN = (
        "overrun",
        "A newer frame took its place (`drop_policy: latest`, or a tenant's `max_waiting`).",
        True,
    )
    DEADLINE = ("deadline", "A tenant's frame could not meet its deadline (`when_late: drop`).")
    REMOVED = ("removed", "Its tenant was removed, or got another model, before the frame was done.", True)
    MIDDLEWARE = (
        "middleware",
        "DDS overwrote it before the node saw it. The publisher's sequence numbers have a gap there.",
        True,
    )
    UNKNOWN_ENCODING = ("unknown_encoding", _NO_IMAGE)
    UNKNOWN_FORMAT = ("unknown_format", _NO_IMAGE)
    EMPTY_IMAGE = ("empty_image", _NO_IMAGE)
    BAD_STEP = ("bad_step", _NO_IMAGE)
    BAD_SIZE = ("bad_size", _NO_IMAGE)
    TRUNCATED_IMAGE = ("truncated_image", _NO_IMAGE)
    CORRUPT_IMAGE = ("corrupt_image", _NO_IMAGE)
    TOO_LARGE = (
        "too_large",
        "The image has more than `max_image_pixels`. For JPEG and PNG, the node reads only the header.",
    )
    RATE_LIMITED = ("rate_limited", "The camera is faster than `max_rate_hz`.", True)
    PAUSED = ("paused", "The service `enable` switched the node off.", True)
    NO_HEAD = ("no_head", "There was no head to give the batch to.")
    LEASE_EXPIRED = ("lease_expired", "A head was told of the batch and did not take it in time.")
    READER_DIED = ("reader_died", "A head in another process died while it read the batch.")
    DAMAGED_SLOT = ("damaged_slot", "What a head in another process wrote about the batch makes no sense.")
    UNKNOWN_REASON = ("unknown_reason", "A head in another process gave a reason that no head may give.")
    WEIGHTS_UNREADABLE = ("weights_unreadable", _NO_WEIGHTS)
    WEIGHTS_TRUNCATED = ("weights_truncated", _NO_WEIGHTS)
    WEIGHTS_DAMAGED = ("weights_damaged", _NO_WEIGHTS)
    WEIGHTS_STALLED = ("weights_stalled", _NO_WEIGHTS)
    BACKBONE_ERROR = ("backbone_error", "The backbone raised an exception, which is logged.")
    HEAD_ERROR = ("head_error", "The head raised an exception, which is logged.", False, Reporter.HEAD)
    DEVICE_LOST = ("device_lost", "The GPU refuses all work of this process, which then ends.")
    INACTIVE = ("inactive", "The node was not active.", True)
    SHUTDOWN = ("shutdown", "The node ended.", True)

    meaning: str
    intended: bool
    reporter: Reporter

    def __new__(
        cls, value: str, meaning: str, intended: bool = False, reporter: Reporter = Reporter.BACKBONE
    ) -> DropReason:
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.meaning, reason.intended, reason.reporter = meaning, intended, reporter
        return reason

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def named(cls, text: str) -> DropReason:
        """Returns the reason of that name, or ``UNKNOWN_REASON`` if there is none."""
        return next((reason for reason in cls if reason.value == text), cls.UNKNOWN_REASON)

    @classmethod
    def claimed_by_head(cls, text: str) -> DropReason:
        """Returns the reason that a head in another process gave, or ``UNKNOWN_REASON`` if no head may give it."""
        reason = cls.named(text)
        return reason if reason.reporter is Reporter.HEAD else cls.UNKNOWN_REASON
