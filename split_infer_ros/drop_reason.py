"""The registry of all reasons for dropping a frame. The documents' table is made from it."""

from __future__ import annotations

import enum

_NO_WEIGHTS = "A layer's weights could not be read from their file (`weights_residency`)."


class Reporter(enum.Enum):
    """Who may report a drop reason."""

    BACKBONE = "backbone"
    HEAD = "head"


class DropReason(str, enum.Enum):
    """The name under which a dropped frame is counted. Reports and messages carry the value, such as ``overrun``.

    ``scripts/reference.py`` renews the documents' table after a change. Reasons with the same meaning share a row.

    Attributes:
        meaning: what happened to the frame, in Markdown.
        intended: whether somebody asked for this kind of drop. Other reasons count as failures in diagnostics.
        reporter: who may report the reason. A head in another process may report only reasons with ``HEAD``.
    """

    OVERRUN = (
        "overrun",
        "A newer frame replaced it (`drop_policy: latest`, or a tenant's `max_waiting`).",
        True,
    )
    DEADLINE = ("deadline", "A tenant's frame could not meet its deadline (`when_late: drop`).")
    REMOVED = ("removed", "Its tenant was removed, or got another model, before the frame was done.", True)
    MIDDLEWARE = (
        "middleware",
        "DDS lost or overwrote it before the node could read it. The publisher's sequence numbers have a gap there.",
        True,
    )
    UNKNOWN_ENCODING = ("unknown_encoding", "The image's `encoding` is not supported. The log lists those that are.")
    UNKNOWN_FORMAT = ("unknown_format", "The compressed image is neither JPEG nor PNG.")
    EMPTY_IMAGE = ("empty_image", "The image has no pixels or no data.")
    BAD_STEP = (
        "bad_step",
        "The image's `step` is smaller than a row of its pixels, or the point cloud's `row_step` than a row of its "
        "points.",
    )
    BAD_SIZE = ("bad_size", "The image's width or height is not possible in its encoding.")
    TRUNCATED_IMAGE = ("truncated_image", "The image has fewer bytes than its `height` and `step` need.")
    CORRUPT_IMAGE = ("corrupt_image", "The compressed image is damaged and cannot be decoded.")
    TOO_LARGE = (
        "too_large",
        "The image has more pixels than `max_image_pixels`. Of a JPEG or PNG, only the header was read. Or the point "
        "cloud has too many points or voxels, which the log counts.",
    )
    EMPTY_CLOUD = ("empty_cloud", "No point of the point cloud has finite coordinates, so it shows nothing.")
    BAD_FIELDS = (
        "bad_fields",
        "The point cloud's field x, y or z is missing, is there twice, has an unknown datatype or does not lie within "
        "a point.",
    )
    TRUNCATED_CLOUD = ("truncated_cloud", "The point cloud has fewer bytes than its `height` and `row_step` need.")
    RATE_LIMITED = ("rate_limited", "The camera is faster than `max_rate_hz`.", True)
    NOBODY_LISTENS = (
        "nobody_listens",
        "The node is `lazy`, and nobody subscribed to its results, or no head ran.",
        True,
    )
    PAUSED = ("paused", "The service `enable` has paused the node.", True)
    NO_HEAD = ("no_head", "There was no head that could take the batch.")
    LEASE_EXPIRED = ("lease_expired", "A head was sent the batch and did not take it in time.")
    READER_DIED = ("reader_died", "A head in another process died while it read the batch.")
    DAMAGED_SLOT = ("damaged_slot", "A head in another process wrote an invalid record about the batch.")
    UNKNOWN_REASON = ("unknown_reason", "A head in another process gave a reason that heads may not give.")
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
        """Returns the reason with the value ``text``; ``UNKNOWN_REASON`` if there is none."""
        return next((reason for reason in cls if reason.value == text), cls.UNKNOWN_REASON)

    @classmethod
    def claimed_by_head(cls, text: str) -> DropReason:
        """Returns the reason that a head of another process gave; ``UNKNOWN_REASON`` if a head may not give it."""
        reason = cls.named(text)
        return reason if reason.reporter is Reporter.HEAD else cls.UNKNOWN_REASON
