from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.buffers.layout import Layout, TensorSpec
from split_infer_ros.buffers.pool import SlotPool, find_pool
from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.errors import ConfigurationError, HandleError


def make_pool(slots: int = 3, released: Callable[[Lease, Outcome], None] | None = None) -> SlotPool:
    return SlotPool.allocate(Layout([TensorSpec("x", (4,), FLOAT32)], 2), slots, released=released)


def test_each_slot_has_memory_of_its_own() -> None:
    pool = make_pool()
    leases = [pool.leases.acquire() for _ in range(3)]
    assert None not in leases
    views = [pool.views(lease, 2)[0] for lease in leases if lease]
    for number, view in enumerate(views):
        view[...] = number
    assert [np.unique(view).tolist() for view in views] == [[0.0], [1.0], [2.0]]
    assert all(view.ctypes.data % pool.layout.specs[0].dtype.itemsize == 0 for view in views)
    assert pool.bytes == 3 * pool.layout.slot_bytes


def test_a_slot_has_the_same_memory_at_each_use() -> None:
    pool = make_pool(slots=1)
    seen = set()
    for _ in range(3):
        lease = pool.leases.acquire()
        assert lease is not None
        seen.add(pool.views(lease, 1)[0].ctypes.data)
        pool.release(lease, Outcome(1, ""))
    assert len(seen) == 1


def test_outcomes_count_once() -> None:
    heard: list[tuple[Lease, Outcome]] = []
    pool = make_pool(slots=1, released=lambda lease, outcome: heard.append((lease, outcome)))
    lease = pool.leases.acquire()
    assert lease is not None
    pool.release(lease, Outcome(1, "head_error", 1.0, 2.0, 3.0))
    with pytest.raises(HandleError) as refusal:
        pool.release(lease, Outcome(2, ""))
    assert refusal.value.reason == "released"
    assert heard == [(lease, Outcome(1, "head_error", 1.0, 2.0, 3.0))]


def test_only_slots_of_a_dead_reader_are_reclaimed() -> None:
    pool = make_pool(slots=3)
    early, late, unsent = (pool.acquire() for _ in range(3))
    assert early is not None
    assert late is not None
    assert unsent is not None
    pool.publish(early, 10.0)
    pool.publish(late, 11.0)
    assert pool.reclaim_orphans(9.9) == []
    assert pool.reclaim_orphans(10.5) == [(early, Outcome(0, "reader_died"))]
    assert pool.reclaim_orphans(10.5) == []
    pool.release(late, Outcome(1, "head_error"))
    assert pool.reclaim_orphans(1e9) == []
    assert pool.leases.used == 1


def test_a_pool_is_found_while_it_lives() -> None:
    pool = make_pool()
    lease = pool.leases.acquire()
    assert lease is not None
    assert find_pool(lease) is pool
    del pool
    gc.collect()
    with pytest.raises(HandleError) as refusal:
        find_pool(lease)
    assert refusal.value.reason == "foreign"


def test_too_much_memory_is_refused_with_what_to_change() -> None:
    layout = Layout([TensorSpec("x", (1 << 40,), FLOAT32)], 64)
    with pytest.raises(ConfigurationError, match="batch_size"):
        SlotPool.allocate(layout, 8)


def test_repr_tells_size_and_use() -> None:
    pool = make_pool()
    pool.leases.acquire()
    assert "768 bytes" in repr(pool)
    assert "1/3" in repr(pool)
