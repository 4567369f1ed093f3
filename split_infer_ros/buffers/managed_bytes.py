"""Counts the managed memory of this process, so that it never takes more than a GPU has free.

Most GPUs get pages for managed memory only once these are touched. Until then, CUDA grants any amount, and reports as
much free memory as before. A GPU that then has too few pages can hang.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable


class ManagedBytes:
    """The bytes of managed memory that this process has, in allocations of their own and in torch's pools.

    There is no lock. Finalizers free memory, and one can run on a thread that is counting.
    """

    def __init__(self) -> None:
        self._taken: dict[object, int] = {}  # by allocation
        self._sum = ctypes.c_longlong(0)
        self._bytes_in_pools: Callable[[], int] = lambda: 0

    @property
    def total(self) -> int:
        """The bytes of all managed memory."""
        return self._sum.value + self._bytes_in_pools()

    @property
    def address(self) -> int:
        """Where C code finds the bytes outside of pools, a ``long long``."""
        return ctypes.addressof(self._sum)

    def count_pools(self, bytes_in_pools: Callable[[], int]) -> None:
        """Sets the function that returns the bytes in torch's pools."""
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
