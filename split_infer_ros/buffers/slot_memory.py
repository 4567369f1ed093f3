"""The memory of a pool's slots, and how a batch's features get into a slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from split_infer_ros.buffers.layout import Layout, SlotViews, Strides, dense_strides
from split_infer_ros.buffers.memory import Memory, Place, allocate
from split_infer_ros.buffers.policy import FALLBACK
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.cuda import OutOfMemory


class SlotMemory:
    """One piece of memory for each slot, with the strides of the tensors that were last written there.

    A slot keeps these strides because kernels are chosen by them, and another kernel rounds differently.

    Args:
        layout: of a batch's tensors in a slot.
        slots: the memory of each slot, with at least ``layout.slot_bytes``.
        note: a sentence that says why the memory is not of the requested policy; empty if it is.
    """

    def __init__(self, layout: Layout, slots: Sequence[Memory], note: str = "") -> None:
        self._slots = list(slots)
        self._host = [SlotViews(layout, memory.host) for memory in self._slots]
        self._device = [SlotViews(layout, memory.device) for memory in self._slots]
        self._strides: list[tuple[Strides, ...] | None] = [None] * len(self._slots)
        self.policy = self._slots[0].policy
        self.note = note

    @classmethod
    def allocate(
        cls, layout: Layout, num_slots: int, place: Place, make: Callable[[int, Place], Memory] | None = None
    ) -> SlotMemory:
        """Makes slots of the requested policy. If there is no room, it makes ``pinned`` ones, and ``note`` says so.

        Args:
            layout: of a batch's tensors in a slot.
            num_slots: how many slots to make.
            place: the requested policy, and where the backbone runs.
            make: returns the memory of a slot, given its index; None means to allocate it.

        Raises:
            ConfigurationError: there is no room for pinned memory either.
        """

        def allocate_slot(_: int, place: Place) -> Memory:
            return allocate(place.policy, layout.slot_bytes, place.device)

        make = make or allocate_slot
        try:
            return cls(layout, [make(slot, place) for slot in range(num_slots)])
        except OutOfMemory as error:
            if not place.policy.takes_device_memory:
                raise _no_room(layout, num_slots, error) from error
            note = (
                f"There is no room for the features by memory_policy {place.policy.value} ({error}): "
                f"{FALLBACK.value} is used instead."
            )
        fallback = Place(FALLBACK, place.device)
        try:
            return cls(layout, [make(slot, fallback) for slot in range(num_slots)], note)
        except OutOfMemory as error:
            raise _no_room(layout, num_slots, error) from error

    @property
    def bytes(self) -> int:
        """Bytes of all slots, on both sides."""
        return sum(memory.bytes for memory in self._slots)

    @property
    def needs_copy(self) -> bool:
        """True if what the device wrote must be fetched before the CPU sees it."""
        return self.policy.needs_copy

    def views(self, slot: int, batch: int) -> tuple[Tensor, ...]:
        """Returns the CPU's views of the tensors of ``batch`` images, (batch, *shape) each.

        The views have the strides of what was last written; before the first write they are contiguous. Ask for at
        most as many images as were written.
        """
        return self._host[slot](batch, self._strides[slot])

    def fill(self, slot: int, batch: int, compute: Callable[[tuple[Tensor, ...]], object]) -> None:
        """Has ``compute`` write the tensors of ``batch`` images straight into the slot, without a copy.

        Args:
            slot: the index of the slot.
            batch: how many images.
            compute: called with the device's views of the tensors, contiguous (batch, *shape) each. It writes all of
                them in the device's current stream.
        """
        memory = self._slots[slot]
        memory.give_to_device()
        self._strides[slot] = None  # contiguous
        compute(self._device[slot](batch))
        memory.give_to_host()

    def write(self, slot: int, tensors: Sequence[Tensor]) -> None:
        """Has the device write the tensors of a batch into the slot, in its current stream."""
        memory = self._slots[slot]
        memory.give_to_device()
        strides = self._strides[slot] = tuple(map(dense_strides, tensors))
        for view, tensor in zip(self._device[slot](len(tensors[0]), strides), tensors, strict=True):
            view.copy_(tensor, non_blocking=True)
        memory.give_to_host()

    def fetch(self, slot: int, batch: int) -> None:
        """Copies the device's bytes to the host, in the current stream; only for a policy that needs a copy."""
        strides = self._strides[slot]
        for to, source in zip(self._host[slot](batch, strides), self._device[slot](batch, strides), strict=True):
            to.copy_(source, non_blocking=True)

    def close(self) -> None:
        """Releases the memory. Allocated memory is freed with the last view of it."""
        for memory in self._slots:
            memory.release()
        self._slots.clear()
        self._host.clear()
        self._device.clear()


def _no_room(layout: Layout, num_slots: int, error: OutOfMemory) -> ConfigurationError:
    return ConfigurationError(
        f"A pool of {num_slots} slots of {layout.slot_bytes:,} bytes cannot be allocated ({error}): "
        "take a smaller batch_size, fewer pool_slots or a later split_point."
    )
