"""Simulates torch's caching allocator: blocks of memory belong to streams, and are reused at once without cleaning."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from simulated_gpu.captures import PoolId
from simulated_gpu.clocks import Clock, join, place_of_call
from simulated_gpu.memory_map import Region
from simulated_gpu.queues import Queue, Work

if TYPE_CHECKING:
    from simulated_gpu.gpu import Gpu
    from simulated_gpu.memory_pools import PoolAllocator

GRAIN = 512
LARGE = 1 << 20
POISON = 0xFF  # NaN in every floating-point type
SPOILT = 1 << 16
COMMON: PoolId = (0, 0)


class Block:
    """A piece of device memory, which always belongs to the same stream and pool."""

    def __init__(self, memory: Tensor, region: Region, queue: Queue, pool: PoolId) -> None:
        self.bytes = memory
        self.spoil()
        self.queue = queue
        self.pool = pool
        self.in_use = False
        self.awaited: list[tuple[Work | None, Clock]] = []  # of ``record_stream``, before it is handed out again
        self.region = region

    def spoil(self) -> None:
        """Overwrites the first ``SPOILT`` bytes of the block with NaN, so that reads of old values are noticed."""
        self.bytes[:SPOILT].fill_(POISON)


class Use:
    """One use of a block by tensors. It ends when the last tensor that lies in the block is gone."""

    def __init__(self, allocator: Allocator, block: Block) -> None:
        self.block = block
        self.streams: set[Queue] = set()  # those of ``record_stream``
        self._allocator = allocator

    def __del__(self) -> None:
        self._allocator.let_go(self.block, self.streams)


class Allocator:
    """Keeps blocks by pool and stream.

    Blocks of the common pool are freed by ``release``. Blocks of a graph's pool are freed once the graph is gone.

    Attributes:
        blocks: all blocks.
        users: for each pool, how many graphs and ``MemPool`` objects use it.
        left_open: pools into which an allocation was begun but not ended, as after a failed capture.
        entered: pools from which threads allocate now.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.blocks: list[Block] = []
        self.users: dict[PoolId, int] = defaultdict(int)
        self.left_open: set[PoolId] = set()
        self.entered: set[PoolId] = set()
        self._closed: list[PoolId] = []
        self._allocators: dict[PoolId, PoolAllocator | None] = {}  # of pools that were not made for a graph
        self._garbage: list[tuple[Block, set[Queue]]] = []
        self._free: dict[tuple[PoolId, Queue], list[Block]] = defaultdict(list)
        self._pools: dict[Region, PoolId] = {}  # of the regions of all blocks

    @property
    def reserved(self) -> int:
        """Bytes of all blocks."""
        return sum(block.region.size for block in self.blocks)

    @property
    def reserved_on_device(self) -> int:
        """Bytes of the blocks that are plain memory of the device."""
        return sum(block.region.size for block in self.blocks if block.region.kind == "device")

    @property
    def allocated(self) -> int:
        """Bytes of the blocks that hold a tensor."""
        return sum(block.region.size for block in self.blocks if block.in_use)

    def allocate(self, nbytes: int, queue: Queue) -> tuple[Tensor, Use]:
        """Returns memory for a tensor, uint8 (at least ``nbytes``,), and the object that keeps the memory in use."""
        self.drain()
        size = max(GRAIN, -(-nbytes // GRAIN) * GRAIN)
        pool = queue.capture.pool if queue.capture is not None else self._gpu.pool_of_thread or COMMON
        free = self._free[pool, queue]
        # As in torch, small tensors do not lie in what large ones left.
        most = LARGE if size < LARGE else self._gpu.total
        fitting = [block for block in free if size <= block.region.size <= most]
        if fitting:
            block = min(fitting, key=lambda each: each.region.size)
            free.remove(block)
            self._hand_out_again(block)
        else:
            block = self._grow(size, queue, pool)
        block.in_use = True
        block.region.name = f"{nbytes:,} bytes of {block.region.kind} memory allocated at {place_of_call()}"
        return block.bytes, Use(self, block)

    def let_go(self, block: Block, streams: set[Queue]) -> None:
        """Notes that the last tensor in a block is gone. Any thread may call this, at any time."""
        self._garbage.append((block, streams))

    def drain(self) -> None:
        """Gives blocks that no tensor uses any longer back to their streams."""
        while self._garbage:
            block, streams = self._garbage.pop(0)
            block.region.use += 1
            block.in_use = False
            block.awaited = [(queue.last, dict(queue.clock)) for queue in streams]
            self._free[block.pool, block.queue].append(block)
        self._free_closed_pools()

    def release(self) -> None:
        """Frees the blocks that no tensor and no graph needs.

        Does nothing while a capture is under way, or after one that never ended. While a thread allocates from a pool,
        blocks of the common pool are not freed.
        """
        gpu = self._gpu
        self.drain()
        if gpu.captures or self.left_open:
            return
        idle = [block for block in self.blocks if not block.in_use and not self.users[block.pool]]
        self._free_blocks([block for block in idle if block.pool != COMMON or not self.entered])

    def open_pool(self, pool: PoolId, allocator: PoolAllocator | None) -> None:
        """Opens the pool of a ``MemPool`` object. It stays open as long as this object exists."""
        self.users[pool] += 1
        self._allocators[pool] = allocator

    def close_pool(self, pool: PoolId) -> None:
        """Notes that the ``MemPool`` object of a pool is gone. Any thread may call this, at any time."""
        self._closed.append(pool)

    def _free_closed_pools(self) -> None:
        """Frees what pools that were closed have free. Their other blocks wait for ``release``."""
        while self._closed:
            pool = self._closed.pop(0)
            if self.users[pool] != 1:
                self._gpu.faults.append("A pool of torch was destroyed before the graphs that use it.")
            self.users[pool] -= 1
            self._free_blocks([block for block in self.blocks if block.pool == pool and not block.in_use])

    def is_of_graphs(self, pool: PoolId) -> bool:
        """Returns whether the blocks of a pool belong to graphs. Graphs may use them again without asking."""
        return pool != COMMON and (pool not in self._allocators or self.users[pool] > 1)

    def lies_in_graphs(self, region: Region) -> bool:
        """Returns whether a region is a block that belongs to graphs."""
        pool = self._pools.get(region)
        return pool is not None and self.is_of_graphs(pool)

    def _free_blocks(self, idle: Sequence[Block]) -> None:
        gpu = self._gpu
        if not idle:
            return
        gpu.processor.finish_all()
        for queue in gpu.processor.queues:
            gpu.host().follow(queue)  # to free memory waits for the whole device
            join(gpu.known, queue.clock)
        for block in idle:
            self.blocks.remove(block)
            del self._pools[block.region]
            self._free[block.pool, block.queue].remove(block)
            allocator = self._allocators.get(block.pool)
            if allocator is None:
                gpu.memory.remove(block.region)
            else:
                allocator.free(block.region.start, block.region.size, 0, block.queue.handle)

    def segments(self) -> list[dict[str, Any]]:
        """Returns the blocks in the format of torch's ``memory_snapshot``."""
        with self._gpu.lock:
            self.drain()
            return [_segment(block) for block in self.blocks]

    def _grow(self, size: int, queue: Queue, pool: PoolId) -> Block:
        allocator = self._allocators.get(pool)
        if allocator is not None:
            return self._grow_by(allocator, size, queue, pool)
        if size > self._gpu.free_bytes:
            self.release()
        if size > self._gpu.free_bytes:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size} bytes. GPU 0 has {self._gpu.free_bytes} bytes free."
            )
        memory = torch.empty(size, dtype=torch.uint8)
        region = self._gpu.memory.add(Region(memory.data_ptr(), size, "device", ""))
        return self._add(Block(memory, region, queue, pool))

    def _grow_by(self, allocator: PoolAllocator, size: int, queue: Queue, pool: PoolId) -> Block:
        address = allocator.allocate(size, 0, queue.handle)
        region = self._gpu.memory.find(address or 0)
        if region is None:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes from a pool.")
        with torch._C._DisableTorchDispatch(), torch.inference_mode(False):
            memory = torch.frombuffer((ctypes.c_ubyte * size).from_address(region.start), dtype=torch.uint8)
        return self._add(Block(memory, region, queue, pool))

    def _add(self, block: Block) -> Block:
        self.blocks.append(block)
        self._pools[block.region] = block.pool
        return block

    def _hand_out_again(self, block: Block) -> None:
        """Checks that other streams are done with a block when its own stream uses it again."""
        gpu, queue = self._gpu, block.queue
        place = f"{place_of_call()}, where that memory is handed out again"
        if queue.capture is not None:
            gpu.launch(queue, block.spoil, [(block.bytes, True)], place)
            return
        for work, clock in block.awaited:
            queue.learn(clock)
            if work is not None:
                queue.needs.append(work)
        block.awaited = []
        queue.follow(gpu.host())
        queue.step()
        known = dict(queue.clock)
        join(known, gpu.known)
        gpu.memory.touch(block.region, 0, block.region.size, queue, known, True, place)
        queue.append(block.spoil)


def _segment(block: Block) -> dict[str, Any]:
    size, state = block.region.size, "active_allocated" if block.in_use else "inactive"
    return {
        "device": 0,
        "address": block.region.start,
        "total_size": size,
        "allocated_size": size * block.in_use,
        "segment_pool_id": block.pool,
        "stream": block.queue.handle,
        "blocks": [{"size": size, "state": state}],
    }
