"""The memory of a pool's slots. Writes a batch's features into a slot, and gives views of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from split_infer_ros.buffers.host_arrays import Values, copy_into, dtype_of
from split_infer_ros.buffers.layout import (
    Layout,
    SlotViews,
    Strides,
    TensorSpec,
    batched_strides,
    dense_strides,
    is_dense,
    strides_of,
)
from split_infer_ros.buffers.memory import Memory, Place
from split_infer_ros.buffers.memory_allocation import allocate_at
from split_infer_ros.buffers.policy import FALLBACK, Policy
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.cuda import OutOfMemory


class SlotMemory:
    """The memory of a pool's slots, one piece for each slot.

    Each slot notes the strides of the tensors that were last written to it, and its views have the same strides. An
    engine chooses its kernels by these strides, and another kernel rounds differently.

    Args:
        layout: the layout of a batch's tensors in a slot.
        slots: the memory of each slot, with at least ``layout.slot_bytes``.
        note: a sentence that says why the memory is not of the requested policy; empty if it is.
        holds_tensors: True if all readers are in this process.

    Attributes:
        policy: the policy of the memory.
        note: the argument.
        holds_tensors: whether a slot may hold the written values themselves, in place of a copy. It may if all readers
            are in this process and the backbone runs on the CPU.
    """

    def __init__(self, layout: Layout, slots: Sequence[Memory], note: str = "", *, holds_tensors: bool = False) -> None:
        self._layout = layout
        self._slots = list(slots)
        self._host = [SlotViews(layout, memory.host) for memory in self._slots]
        self._device = [SlotViews(layout, memory.device) for memory in self._slots]
        self._strides: list[tuple[Strides, ...] | None] = [None] * len(self._slots)
        self._held: list[tuple[Values, ...]] = [()] * len(self._slots)  # values kept until the slot is written again
        self._lent: set[int] = set()
        self.policy = self._slots[0].policy
        self.holds_tensors = holds_tensors and not self.policy.needs_gpu
        self.note = note

    @classmethod
    def allocate(
        cls, layout: Layout, num_slots: int, place: Place, make: Callable[[int, Place], Memory] | None = None
    ) -> SlotMemory:
        """Makes slots of the requested policy. If there is no room, makes ``pinned`` slots, and ``note`` says so.

        Args:
            layout: the layout of a batch's tensors in a slot.
            num_slots: number of slots.
            place: the requested policy, and the device on which the backbone runs.
            make: called with a slot's index and a place; returns the slot's memory. None allocates new memory.

        Raises:
            ConfigurationError: there is no room for the slots, not even for pinned ones.
        """
        is_own = make is None
        make = make or (lambda _, place: allocate_at(place, layout.slot_bytes))
        try:
            return cls(layout, [make(slot, place) for slot in range(num_slots)], holds_tensors=is_own)
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

    def with_policy(self, policy: Policy) -> SlotMemory | None:
        """Returns the same slots under another policy; None if their memory does not support that policy."""
        slots = [found for memory in self._slots if (found := memory.with_policy(policy)) is not None]
        return SlotMemory(self._layout, slots) if len(slots) == len(self._slots) else None

    @property
    def bytes(self) -> int:
        """Bytes of all slots, on CPU and GPU together."""
        return sum(memory.bytes for memory in self._slots)

    @property
    def needs_copy(self) -> bool:
        """True if the CPU sees what the device wrote only after ``fetch``."""
        return self.policy.needs_copy

    def views(self, slot: int, batch: int) -> tuple[Values, ...]:
        """Returns the CPU's views of the values of ``batch`` images, (batch, *shape) each.

        The views have the strides of the last write. Before the first write they are contiguous. Ask for at most as
        many images as were written. The views are tensors if a GPU shares the memory or if the slot holds tensors.
        """
        if self._held[slot]:
            return tuple(values[:batch] for values in self._held[slot])
        return self._host[slot](batch, self._strides[slot])

    @property
    def has_exclusive_sides(self) -> bool:
        """True if the CPU may not touch the memory while the device works on it."""
        return any(memory.is_exclusive for memory in self._slots)

    @contextmanager
    def lent_to_device(self, slot: int) -> Iterator[None]:
        """Lets the device touch a slot in the work that the current stream gets inside the block.

        Blocks for the same slot may be nested.
        """
        if slot in self._lent:
            yield
            return
        self._lent.add(slot)
        self._slots[slot].give_to_device()
        try:
            yield
        finally:
            self._lent.discard(slot)
            if not self.needs_copy:  # otherwise ``fetch`` gives the slot to the host
                self._slots[slot].give_to_host()

    def strides(self, slot: int) -> tuple[Strides, ...] | None:
        """Returns the strides of each tensor that was last written to a slot; None means contiguous tensors."""
        return self._strides[slot]

    def set_strides(self, slot: int, strides: tuple[Strides, ...] | None) -> None:
        """Notes the strides of the tensors that a recorded graph writes to a slot; None means contiguous tensors.

        Such a graph writes without a call of ``fill`` or ``write``.
        """
        self._strides[slot], self._held[slot] = strides, ()

    def fill(
        self,
        slot: int,
        batch: int,
        compute: Callable[[tuple[Values, ...]], object],
        strides: tuple[Strides, ...] | None = None,
    ) -> None:
        """Has ``compute`` write the tensors of ``batch`` images directly into the slot, without a copy.

        Args:
            slot: the index of the slot.
            batch: number of images.
            compute: called with the device's views of the tensors, (batch, *shape) each. It writes all of them in the
                device's current stream.
            strides: the strides of the views, which must be dense; None: contiguous views.
        """
        self.set_strides(slot, strides)
        with self.lent_to_device(slot):
            compute(self._device[slot](batch, strides))

    def write(self, slot: int, tensors: Sequence[Values], batched: bool = False) -> None:
        """Puts the tensors of a batch into the slot, in the device's current stream.

        The device copies the tensors. If ``holds_tensors`` is true, the slot may hold the tensors themselves instead.
        Nobody may write to them later.

        Args:
            slot: the index of the slot.
            tensors: the tensors of the batch.
            batched: whether one image must follow the other in memory. Fewer images can then be read than were written.
        """
        if self.holds_tensors and all(map(_can_be_held, tensors, self._layout.specs)):
            self._held[slot] = tuple(tensors)
            return

        def copy(views: tuple[Values, ...]) -> None:
            for view, tensor in zip(views, tensors, strict=True):
                copy_into(view, tensor)

        strides_of = batched_strides if batched else dense_strides
        self.fill(slot, len(tensors[0]), copy, tuple(map(strides_of, tensors)))

    def fetch(self, slot: int, batch: int) -> None:
        """Copies the tensors of ``batch`` images from the device to the host, in the current stream.

        Call it only if ``needs_copy`` is true.
        """
        strides = self._strides[slot]
        for to, source in zip(self._host[slot](batch, strides), self._device[slot](batch, strides), strict=True):
            copy_into(to, source)
        self._slots[slot].give_to_host()

    def close(self) -> None:
        """Gives up the slots' memory. Memory that this process allocated is freed when its last view is collected.

        For shared memory, only the page-locking ends.
        """
        for memory in self._slots:
            memory.release()
        self._slots.clear()
        self._host.clear()
        self._device.clear()
        self._held.clear()


def _can_be_held(values: Values, spec: TensorSpec) -> bool:
    """Returns whether values are dense, fit their spec, and were made by an engine for this batch.

    Arrays are always made for the batch. A tensor that was made in inference mode is never a weight of the model, nor a
    view of one.
    """
    if isinstance(values, np.ndarray):
        is_owned, dtype = True, values.dtype
    else:
        is_owned, dtype = values.is_inference(), dtype_of(values)
    is_as_specified = dtype == spec.dtype and values.shape[1:] == spec.shape
    return is_owned and is_as_specified and is_dense(values.shape, strides_of(values))


def _no_room(layout: Layout, num_slots: int, error: OutOfMemory) -> ConfigurationError:
    return ConfigurationError(
        f"A pool of {num_slots} slots of {layout.slot_bytes:,} bytes cannot be allocated ({error}): "
        "take a smaller batch_size, fewer pool_slots or a later split_point."
    )
