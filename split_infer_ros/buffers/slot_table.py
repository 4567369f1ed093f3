"""What owner and reader of a shared segment tell each other about its slots.

A record a slot, in the segment's bookkeeping pages. The owner alone makes a slot ready or free; a reader that
holds the slot's lock alone makes it reading and done. The lock ends with its process, so a record that says
``reading`` while nobody holds the lock tells of a reader that died.
"""

from __future__ import annotations

import enum
import mmap
import struct
from dataclasses import dataclass

from split_infer_ros.buffers.segment import PAGE, Segment
from split_infer_ros.buffers.slots import Outcome

RECORD_BYTES = 64
_RECORD = struct.Struct("<IIQddd24s")  # state, frames published, generation, the outcome's times, reason
_STATE = struct.Struct("<I4xQ")  # the same, without what only its end tells
STATE_BYTES = 4

NOTHING_YET = Outcome(0, "")


class SharedState(enum.IntEnum):
    """Of a slot, as both sides see it."""

    FREE = 0
    READY = 1
    READING = 2
    DONE = 3
    DAMAGED = 4  # stands for all that neither side writes

    @classmethod
    def _missing_(cls, value: object) -> SharedState:
        return cls.DAMAGED


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """One slot's record; the outcome counts once the state is DONE."""

    state: SharedState
    generation: int
    outcome: Outcome = NOTHING_YET


class SlotTable:
    """Reads and writes a segment's records."""

    def __init__(self, segment: Segment) -> None:
        self._data: mmap.mmap = segment.data

    def read(self, slot: int) -> SlotRecord:
        """The record of a slot."""
        state, published, generation, *times, reason = _RECORD.unpack_from(self._data, self._offset(slot))
        text = reason.rstrip(b"\0").decode(errors="replace")
        return SlotRecord(SharedState(state), generation, Outcome(published, text, *times))

    def state(self, slot: int) -> tuple[SharedState, int]:
        """State and generation of a slot."""
        state, generation = _STATE.unpack_from(self._data, self._offset(slot))
        return SharedState(state), generation

    def write(self, slot: int, record: SlotRecord) -> None:
        """Write a record; its state last, so that nobody acts on half of one, whenever the writer dies.

        Not by pack_into, which first fills with zeros: to die then would leave a state that nobody wrote.
        """
        offset, outcome = self._offset(slot), record.outcome
        reason = outcome.reason.encode()[:24]
        times = outcome.head_start, outcome.head_end, outcome.delivered
        packed = _RECORD.pack(record.state, outcome.published, record.generation, *times, reason)
        self._data[offset + STATE_BYTES : offset + RECORD_BYTES] = packed[STATE_BYTES:]
        self._data[offset : offset + STATE_BYTES] = packed[:STATE_BYTES]

    @staticmethod
    def _offset(slot: int) -> int:
        return PAGE + slot * RECORD_BYTES
