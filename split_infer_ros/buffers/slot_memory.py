"""The memory of a pool's slots, and how a batch's features get into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from split_infer_ros.buffers.layout import Layout, SlotViews, Strides, dense_strides
from split_infer_ros.buffers.memory import Memory, Place, allocate
from split_infer_ros.buffers.policy import FALLBACK, Policy
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.cuda import OutOfMemory


class SlotMemory:
    """One piece of memory a slot, and how the tensors lie that were last written there.

    A slot keeps the strides of what is written: kernels are chosen by them, and another kernel rounds otherwise.

    Args:
        layout: how a batch's tensors lie in it.
        slots: each with at least ``layout.slot_bytes``.
        note: what there is to say of it, if it is not what was asked for.
    """

    def __init__(self, layout: Layout, slots: Sequence[Memory], note: str = "") -> None:
        self._slots = list(slots)
        self._host = [SlotViews(layout, memory.host) for memory in self._slots]
        self._device = [SlotViews(layout, memory.device) for memory in self._slots]
        self._strides: list[tuple[Strides, ...] | None] = [None] * len(self._slots)
        self.policy = self._slots[0].policy
        self.note = note

    @classmethod
    def make(
        cls, layout: Layout, slots: int, place: Place, make: Callable[[int, Place], Memory] | None = None
    ) -> SlotMemory:
        """Memory by that policy, or where there is no room for it by policy ``pinned``, which ``note`` says then.

        Args:
            make: gives the memory of each slot; allocates it if None.

        Raises:
            ConfigurationError: there is no room for that either.
        """
        make = make or (lambda _, place: allocate(place.policy, layout.slot_bytes, place.device))
        note = ""
        while True:
            try:
                return cls(layout, [make(slot, place) for slot in range(slots)], note)
            except OutOfMemory as error:
                if place.policy in (Policy.HOST, FALLBACK):
                    raise ConfigurationError(
                        f"A pool of {slots} slots of {layout.slot_bytes:,} bytes cannot be allocated ({error}): "
                        "take a smaller batch_size, fewer pool_slots or a later split_point."
                    ) from error
                note = (
                    f"There is no room for the features by memory_policy {place.policy.value} ({error}): "
                    f"{FALLBACK.value} is taken in its stead."
                )
                place = Place(FALLBACK, place.device)

    @property
    def bytes(self) -> int:
        """Bytes of all slots, on both sides."""
        return sum(memory.bytes for memory in self._slots)

    @property
    def copies(self) -> bool:
        """True where what was written is to be fetched before the CPU sees it."""
        return not self._slots[0].is_one

    def views(self, slot: int, batch: int) -> tuple[Tensor, ...]:
        """The CPU's views of the tensors of ``batch`` images, at most as many as were written: (batch, *shape) each.

        They lie as what was written; row by row as long as nothing was.
        """
        return self._host[slot](batch, self._strides[slot])

    def write(self, slot: int, tensors: Sequence[Tensor]) -> None:
        """Have the device, in its current stream, leave the tensors of a batch in the slot."""
        memory = self._slots[slot]
        memory.give_to_device()
        strides = self._strides[slot] = tuple(map(dense_strides, tensors))
        for place, tensor in zip(self._device[slot](len(tensors[0]), strides), tensors, strict=True):
            place.copy_(tensor, non_blocking=True)
        memory.give_to_host()

    def fetch(self, slot: int, batch: int) -> None:
        """Where the device has a buffer of its own, have it copied, in its current stream, to the host's."""
        strides = self._strides[slot]
        for place, tensor in zip(self._host[slot](batch, strides), self._device[slot](batch, strides), strict=True):
            place.copy_(tensor, non_blocking=True)

    def close(self) -> None:
        """Let go; what was allocated here goes with the last view of it."""
        for memory in self._slots:
            memory.let_go()
        for held in (self._slots, self._host, self._device):
            held.clear()
