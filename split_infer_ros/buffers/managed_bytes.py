"""Counts managed memory that may lack pages on the GPU, so that the process never takes more than a GPU has free.

Most GPUs get the pages of managed memory only when the pages are touched. Until then, CUDA grants any amount, and
reports as much free memory as before. A GPU that then has too few pages can hang.

Pages go back to the host when the CPU touches them. So memory that both CPU and GPU touch always counts. Memory of
torch's pools belongs to the GPU alone. Such memory gets its pages while it is allocated, and counts only until then.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable


class ManagedBytes:
    """Counts managed memory that may lack pages on the GPU.

    That is memory that both CPU and GPU touch, and memory that torch's pools are allocating at this moment. The class
    takes no lock: finalizers free memory, and a finalizer can run on a thread that is counting.
    """

    def __init__(self) -> None:
        self._taken: dict[object, int] = {}  # by allocation
        self._sum = ctypes.c_longlong(0)
        self._bytes_in_pools: Callable[[], int] = lambda: 0

    @property
    def total(self) -> int:
        """The bytes of managed memory that may lack pages."""
        return self._sum.value + self._bytes_in_pools()

    @property
    def address(self) -> int:
        """The address of the number of bytes outside of torch's pools, a ``long long`` that C code reads."""
        return ctypes.addressof(self._sum)

    def count_pools(self, bytes_in_pools: Callable[[], int]) -> None:
        """Sets the function that returns the bytes that torch's pools are allocating."""
        self._bytes_in_pools = bytes_in_pools

    def take(self, nbytes: int) -> Callable[[], None]:
        """Counts an allocation of ``nbytes`` bytes, and returns a function that stops counting it."""
        allocation = object()
        self._taken[allocation] = nbytes
        self._add_up()

        def give_back() -> None:
            self._taken.pop(allocation, None)
            self._add_up()

        return give_back

    def _add_up(self) -> None:
        """Adds up the allocations. Repeats until the sum is right, because another thread may write an older sum."""
        while self._sum.value != (taken := sum(self._taken.copy().values())):
            self._sum.value = taken


MANAGED_BYTES = ManagedBytes()
