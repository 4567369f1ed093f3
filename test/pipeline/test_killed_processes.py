"""Processes around a shared ring, killed at any instant: no slot, handle or segment is lost, no frame unnamed, no
feature torn. They are forked, so that a round takes milliseconds; test/nodes/test_transports.py kills whole nodes.
"""

from __future__ import annotations

import random
import socket
import time
from pathlib import Path

import pytest
from pool_processes import (
    LIFE_S,
    WRONG,
    Backbone,
    Child,
    Head,
    OneBackbone,
    kill_readers,
    read_until_killed,
)
from simulated_gpu import GPU

from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.buffers.pool import HOST
from split_infer_ros.buffers.segment import PREFIX, Segment, remove_leftovers

KILLS = [
    pytest.param(HOST.policy, 50, id="host"),
    *(pytest.param(policy, 15, id=policy.value) for policy in POLICIES),
    *(pytest.param(policy, 500, id=f"{policy.value}-500", marks=pytest.mark.slow) for policy in Policy),
]

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def place(policy: Policy, request: pytest.FixtureRequest) -> Place:
    """That kind of memory; a GPU's as the simulated one has it, which notices what stays page-locked."""
    if policy is Policy.HOST:
        return HOST
    request.getfixturevalue("gpu")
    return Place(policy, GPU)


def held() -> tuple[int, int]:
    """Open files and mapped segments of this process."""
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if PREFIX in line]
    return len(list(Path("/proc/self/fd").iterdir())), len(maps)


@pytest.mark.parametrize(("policy", "kills"), KILLS)
def test_a_ring_outlives_its_readers(folder: Path, place: Place, kills: int) -> None:
    backbone = Backbone(place)

    def only_the_ring_is_there() -> None:
        assert [path.name for path in folder.iterdir()] == [backbone.pool.segment]

    before = held()
    delivered = kill_readers(backbone, kills, only_the_ring_is_there)
    assert held() == before
    assert backbone.pool.leases.used == 0
    counts = backbone.ledger.counts()
    assert counts.balanced
    assert counts.in_flight == 0
    assert set(counts.dropped) == {"reader_died", "lease_expired"}
    assert counts.dropped["reader_died"] <= kills
    assert set(delivered.values()) == {1}  # no result twice
    assert WRONG not in delivered
    assert set(backbone.published) <= set(delivered)
    # results that were out when death came, and are not counted: one a death
    assert len(delivered) - len(backbone.published) <= kills
    assert counts.published >= kills / 2
    backbone.pool.close()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("policy", "kills"), KILLS)
def test_a_reader_outlives_the_owners_of_its_rings(folder: Path, place: Place, kills: int) -> None:
    rng = random.Random(2)
    head = Head()
    others = Segment.create(1, 300, 1)  # another pipeline's of this user, whose owner lives
    seen: list[tuple[int, int]] = []
    last = ""
    for _ in range(kills):
        with Child.forked(OneBackbone(place).step):
            time.sleep(rng.uniform(0, LIFE_S))  # as it removes what is left, makes its ring, or waits for a reader
        with Child.forked(OneBackbone(place).step) as child:
            numbers = read_until_killed(head, child, rng.uniform(0, LIFE_S))
            seen.append(held())
            (ring,) = {path.name for path in folder.iterdir()} - {others.name}
            assert ring != last  # what the dead ones left is gone
            last = ring
            assert numbers == list(range(len(numbers)))
    assert set(seen[1:]) == {seen[-1]}
    assert len(head.readers) == 1
    assert remove_leftovers() == [last]
    assert [path.name for path in folder.iterdir()] == [others.name]
    others.close()


def test_a_backbone_that_has_nothing_of_the_head(folder: Path) -> None:
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
        backbone.pool.views(lease, 1)[0][0, 32:] = 0  # as a write that has come half way
        assert head.step(here) == WRONG
    backbone.pool.close()
