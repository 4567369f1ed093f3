"""A frame on its way, and the handle that travels in place of a batch's features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from split_infer_ros.buffers.slots import Lease
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.server.account import Account
from split_infer_ros.server.ledger import Ticket


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The part of a frame that travels to its result.

    Attributes:
        header: the source message's header, repeated untouched.
        source: which camera it came from.
        height, width: of the source image, in pixels.
        pixels: the source image itself, for pictures of results; None where the head is elsewhere.
    """

    header: Any
    source: str
    height: int
    width: int
    pixels: Pixels | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One image that was received and is not yet settled.

    Attributes:
        pixels: the image.
        origin: what its result repeats.
        ticket: its entry in the ledger.
        account: where its times are counted; the ticket is of the same account's ledger.
    """

    pixels: Pixels
    origin: Origin
    ticket: Ticket
    account: Account

    def publish(self, now: float) -> None:
        """Settles the frame: its result went out at ``now``. Once it is settled, the meters have its latency."""
        self.account.meters.latency.add(now - self.ticket.received_at, now)
        self.ticket.publish()

    def drop(self, reason: DropReason) -> None:
        """Settles the frame: it ends here, for that reason."""
        self.ticket.drop(reason)


@dataclass(frozen=True, slots=True)
class Handle:
    """A batch of features, by reference: which slot they lie in and whose images they are of.

    Attributes:
        lease: pool, slot and generation.
        model, split_point: which head can continue.
        batch_capacity: the largest batch a slot is laid out for.
        segment: name of the shared memory in which the slot lies; empty if in the backbone's own.
        origins: one a frame, in the order of the batch dimension.
        frames: the frames themselves, in the same order; empty if the handle came from another process.
    """

    lease: Lease
    model: str
    split_point: str
    batch_capacity: int
    segment: str
    origins: tuple[Origin, ...]
    frames: tuple[Frame, ...] = ()
