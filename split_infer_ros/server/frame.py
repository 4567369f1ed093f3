"""A frame on its way, and the handle that travels in place of a batch's features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from split_infer_ros.buffers.slots import Lease
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.server.account import Account
from split_infer_ros.server.ledger import Ticket


class Payload(Protocol):
    """What a frame holds: the pixels of an image, or the points of a point cloud."""

    @property
    def nbytes(self) -> int:
        """Its bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """What a result needs of its frame: the header, the camera and the size of the source image.

    A point cloud has no size and no pixels.

    Attributes:
        header: the source message's header, repeated untouched.
        source: the camera that sent the image.
        height, width: size of the source image, in pixels.
        pixels: the source image itself, for pictures of results; None if the head is in another process.
        age_s: seconds between the image's own stamp and its arrival; NaN if the stamp is not known.
    """

    header: Any
    source: str
    height: int
    width: int
    pixels: Pixels | None = None
    age_s: float = math.nan


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One image or point cloud that was received and is not yet settled.

    Attributes:
        payload: what it holds, as the model's entry says: ``Pixels``, or points (n, 3).
        origin: the image's header, camera and size, which the result needs.
        ticket: the frame's entry in the ledger of ``account``.
        account: counts the frame and its times.
    """

    payload: Payload
    origin: Origin
    ticket: Ticket
    account: Account

    def publish(self, now: float) -> None:
        """Settles the frame as published at ``now``, in seconds of the steady clock.

        The meters get its latency before it is settled.
        """
        latency_s = now - self.ticket.received_at
        self.account.meters.latency.add(latency_s, now)
        if not math.isnan(self.origin.age_s):
            self.account.meters.age.add(self.origin.age_s + latency_s, now)
        self.ticket.publish()

    def drop(self, reason: DropReason) -> None:
        """Settles the frame as dropped for a reason."""
        self.ticket.drop(reason)


class LocalBatch(Protocol):
    """The batch that a handle refers to, as the process of its backbone sees it."""

    frames: Sequence[Frame]
    unsettled: set[Frame]

    def settle(self, frame: Frame, now: float, reason: DropReason | None = None) -> None:
        """Settles one frame as published at ``now``, or as dropped if there is a reason."""


@dataclass(frozen=True, slots=True)
class Handle:
    """A reference to a batch of features: the slot that holds them, and the frames that they belong to.

    Attributes:
        lease: the lease of the slot: pool, slot and generation.
        model, split_point: name the head partition that takes these features.
        batch_capacity: the largest batch that fits into a slot.
        segment: name of the shared memory that holds the slot; empty if the slot is in the backbone's own memory.
        origins: one origin a frame, in the order of the batch dimension.
        batch: the batch itself; None if the handle came from another process.
    """

    lease: Lease
    model: str
    split_point: str
    batch_capacity: int
    segment: str
    origins: tuple[Origin, ...]
    batch: LocalBatch | None = None
