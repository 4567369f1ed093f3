"""Counts managed memory that may lack pages on the GPU, so that the process never takes more than a GPU has free.

Most GPUs get pages for managed memory only once these are touched. Until then, CUDA grants any amount, and reports as
much free memory as before. A GPU that then has too few pages can hang.

Pages go back to the host when the CPU touches them. So memory that both sides touch always counts. Memory of torch's
pools belongs to the GPU alone. Its pages are taken when it is allocated, and it counts until then.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable


class ManagedBytes:
    """The bytes of managed memory that may lack pages: allocations that both sides touch, and what pools allocate now.

    There is no lock. Finalizers free memory, and one can run on a thread that is counting.
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
        """Where C code finds the bytes outside of pools, a ``long long``."""
        return ctypes.addressof(self._sum)

    def count_pools(self, bytes_in_pools: Callable[[], int]) -> None:
        """Sets the function that returns the bytes that torch's pools are allocating."""
        self._bytes_in_pools = bytes_in_pools

    def take(self, nbytes: int) -> Callable[[], None]:
        """Counts an allocation, and returns a function that ends this."""
        allocation = object()
        self._taken[allocation] = nbytes
        self._add_up()

        def give_back() -> None:
            self._taken.pop(allocation, None)
            self._add_up()

        return give_back

    def _add_up(self) -> None:
        """Adds up what is taken. Another thread may write an older sum meanwhile, so the sum is looked at again."""
        while self._sum.value != (taken := sum(self._taken.copy().values())):
            self._sum.value = taken


MANAGED_BYTES = ManagedBytes()
