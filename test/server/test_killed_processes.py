"""Processes around a shared slot pool are killed at any instant.

No slot, handle or segment is lost, no feature is torn, and every dropped frame has a reason. The processes are forked,
so a round takes milliseconds. test/nodes/test_transports.py kills whole nodes.
"""

from __future__ import annotations

import functools
import gc
import random
import socket
import time
from pathlib import Path

import pytest
from pool_processes import (
    LIFE_S,
    WAIT_S,
    WRONG,
    Backbone,
    Child,
    Head,
    OneBackbone,
    kill_readers,
    read_until_killed,
)
from simulated_gpu import GPU

from split_infer_ros.buffers import shared_pool
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.buffers.pool import HOST
from split_infer_ros.buffers.segment import PREFIX, Segment, remove_leftovers
from split_infer_ros.buffers.shared_pool import SharedSlotPool

KILLS = [
    pytest.param(HOST.policy, 50, id="host"),
    *(pytest.param(policy, 15, id=policy.value) for policy in POLICIES),
    *(pytest.param(policy, 500, id=f"{policy.value}-500", marks=pytest.mark.slow) for policy in Policy),
]

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def place(policy: Policy, request: pytest.FixtureRequest) -> Place:
    """Memory of that policy. The simulated GPU notices memory that stays page-locked."""
    if policy is Policy.HOST:
        return HOST
    request.getfixturevalue("gpu")
    return Place(policy, GPU)


def held() -> tuple[int, int]:
    """Returns the number of open files and of mapped segments of this process."""
    gc.collect()  # another test's are not this one's
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if PREFIX in line]
    return len(list(Path("/proc/self/fd").iterdir())), len(maps)


@pytest.mark.parametrize(("policy", "kills"), KILLS)
def test_pool_outlives_its_readers(folder: Path, place: Place, kills: int) -> None:
    backbone = Backbone(place)

    def only_the_pool_is_there() -> None:
        assert [path.name for path in folder.iterdir()] == [backbone.pool.segment]

    before = held()
    delivered = kill_readers(backbone, kills, only_the_pool_is_there)
    assert held() == before
    assert backbone.pool.leases.used == 0
    counts = backbone.ledger.counts()
    assert counts.balanced
    assert counts.in_flight == 0
    assert counts.dropped
    assert set(counts.dropped) <= {"reader_died", "lease_expired"}  # a fast head leaves no batch to expire
    assert counts.dropped.get("reader_died", 0) <= kills
    assert set(delivered.values()) == {1}  # no result twice
    assert WRONG not in delivered
    assert set(backbone.published) <= set(delivered)
    # a head killed between delivery and release leaves one result uncounted
    assert len(delivered) - len(backbone.published) <= kills
    assert counts.published >= kills / 2
    backbone.pool.close()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("policy", "kills"), KILLS)
def test_reader_outlives_the_owners_of_its_pools(
    folder: Path, place: Place, kills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The forked backbones wait for this process however long a busy machine holds it up.
    monkeypatch.setattr(shared_pool, "ATTACH_S", WAIT_S)
    monkeypatch.setattr(SharedSlotPool, "allocate", functools.partial(SharedSlotPool.allocate, lease_s=WAIT_S))
    rng = random.Random(2)
    head = Head()
    others = Segment.create(1, 300, 1)  # of another pipeline of this user, whose owner lives
    seen: list[tuple[int, int]] = []
    last = ""
    for _ in range(kills):
        with Child.forked(OneBackbone(place).step):
            time.sleep(rng.uniform(0, LIFE_S))  # it removes leftovers, creates its pool, or waits for a reader
        with Child.forked(OneBackbone(place).step) as child:
            numbers = read_until_killed(head, child, rng.uniform(0, LIFE_S))
            seen.append(held())
            (segment,) = {path.name for path in folder.iterdir()} - {others.name}
            assert segment != last  # the dead owner's segment is gone
            last = segment
            assert numbers == list(range(len(numbers)))
    assert set(seen[1:]) == {seen[-1]}
    assert len(head.readers) == 1
    assert remove_leftovers() == [last]
    assert [path.name for path in folder.iterdir()] == [others.name]
    others.close()


def test_head_reads_from_a_spawned_backbone(folder: Path) -> None:
    head = Head()
    with Child.spawned(Policy.HOST) as child:
        numbers = read_until_killed(head, child, LIFE_S)
    assert numbers == list(range(len(numbers)))


def test_torn_features_are_noticed() -> None:
    backbone, head = Backbone(), Head()
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        backbone.step(there)
        assert head.step(here) == 0
        backbone.step(there)
        (lease,) = backbone.pool.leases.ready()
        backbone.pool.views(lease, 1)[0][0, 32:] = 0  # like a write that stopped half way
        assert head.step(here) == WRONG
    backbone.pool.close()
