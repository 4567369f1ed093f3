"""The records through which the owner and the readers of a shared segment exchange the states of its slots.

Each slot has one record in the segment's bookkeeping pages. Only the owner sets the states ready and free. Only a
reader that holds the slot's lock sets the states reading and done. The lock ends with the reader's process. So if a
record says ``reading`` while nobody holds the lock, the reader died.
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
_STATE = struct.Struct("<I4xQ")  # the state and the generation of the same record
STATE_BYTES = 4

NOTHING_YET = Outcome(0, "")


class SharedState(enum.IntEnum):
    """The state of a slot in shared memory, which the owner and the readers see."""

    FREE = 0
    READY = 1
    READING = 2
    DONE = 3
    DAMAGED = 4  # stands for any value that neither side writes

    @classmethod
    def _missing_(cls, value: object) -> SharedState:
        return cls.DAMAGED


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """The record of one slot.

    Attributes:
        state: who may use the slot.
        generation: how many times the owner has acquired the slot.
        outcome: what became of the slot's batch. It is valid only in the state ``DONE``.
    """

    state: SharedState
    generation: int
    outcome: Outcome = NOTHING_YET


class SlotTable:
    """Reads and writes the records of a segment's slots."""

    def __init__(self, segment: Segment) -> None:
        self._data: mmap.mmap = segment.data

    def read(self, slot: int) -> SlotRecord:
        """Returns the record of a slot."""
        fields = _RECORD.unpack_from(self._data, self._offset(slot))
        state, published, generation, head_start, head_end, delivered, reason = fields
        text = reason.rstrip(b"\0").decode(errors="replace")
        outcome = Outcome(published, text, head_start=head_start, head_end=head_end, delivered=delivered)
        return SlotRecord(SharedState(state), generation, outcome)

    def state(self, slot: int) -> tuple[SharedState, int]:
        """Returns the state and the generation of a slot."""
        state, generation = _STATE.unpack_from(self._data, self._offset(slot))
        return SharedState(state), generation

    def write(self, slot: int, record: SlotRecord) -> None:
        """Writes the record of a slot, with its state last. So nobody acts on half a record, even if the writer dies.

        ``pack_into`` is not used, because it first fills the record with zeros. A writer that died at that moment would
        leave a state that nobody wrote.
        """
        offset, outcome = self._offset(slot), record.outcome
        reason = outcome.reason.encode()[:24]
        packed = _RECORD.pack(
            record.state,
            outcome.published,
            record.generation,
            outcome.head_start,
            outcome.head_end,
            outcome.delivered,
            reason,
        )
        self._data[offset + STATE_BYTES : offset + RECORD_BYTES] = packed[STATE_BYTES:]
        self._data[offset : offset + STATE_BYTES] = packed[:STATE_BYTES]

    @staticmethod
    def _offset(slot: int) -> int:
        return PAGE + slot * RECORD_BYTES
