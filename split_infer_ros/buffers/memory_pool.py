"""Memory of one policy for the tensors that torch makes: weights, activations and inputs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.buffers.pool_allocators import POOLED, pool_allocator
from split_infer_ros.runtime.captures import GraphPool, OwnGraphPool
from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.torch_pools import TorchPool, keeping_pools


class MemoryPool:
    """Memory of one policy for torch's tensors. Tensors that are made inside ``allocating`` lie there.

    Under policies other than ``managed`` and ``pinned``, tensors lie in torch's common memory.

    Args:
        policy: the kind of memory.
        device: the device that uses the memory. On a CPU, all memory is plain.

    Attributes:
        policy, device: the arguments.

    Raises:
        ConfigurationError: torch cannot allocate memory of the policy on this machine.
    """

    def __init__(self, policy: Policy, device: Device) -> None:
        self.policy = policy
        self.device = device
        self._pool = self._make_pool() if device.type == "cuda" and policy in POOLED else None
        self._lock = threading.RLock()
        self._is_entered = False

    @contextmanager
    def allocating(self) -> Iterator[None]:
        """Makes torch take memory from this pool for the tensors that this thread makes inside the block.

        torch refuses to enter a pool twice at the same time. So a second thread waits until the first is done, and an
        inner block of the same thread changes nothing. While a graph is recorded, tensors lie in the graph's memory.
        """
        if self._pool is None:
            yield
            return
        import torch  # only here, because only a GPU has such pools

        with self._lock:
            if self._is_entered or torch.cuda.is_current_stream_capturing():
                yield
                return
            self._is_entered = True
            try:
                with keeping_pools(), torch.cuda.use_mem_pool(self._pool.pool, self.device):
                    yield
            finally:
                self._is_entered = False

    def graph_pool(self) -> GraphPool:
        """Returns memory of this policy for graphs, apart from the memory of other tensors.

        Between the launches of a graph, only graphs that share its memory may use that memory.
        """
        return OwnGraphPool() if self._pool is None else self._make_pool()

    @property
    def bytes(self) -> int:
        """The bytes that torch's allocator has taken for this pool; 0 for torch's common memory."""
        return 0 if self._pool is None else sum(segment["total_size"] for segment in self._pool.pool.snapshot())

    def _make_pool(self) -> TorchPool:
        import torch  # only here, because only a GPU has such pools

        allocator = pool_allocator(self.policy)
        with torch.cuda.device(self.device):
            return TorchPool(lambda: torch.cuda.MemPool(allocator))
