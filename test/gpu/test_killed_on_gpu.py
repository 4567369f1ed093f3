"""Slot pools in memory that CUDA has page-locked, whose users are killed: no feature is torn, nothing is left."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pool_processes import LIFE_S, WRONG, Backbone, Child, Head, kill_readers, read_until_killed
from real_gpu import GPU, need

from split_infer_ros.buffers import segment
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.buffers.segment import remove_leftovers


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own in /dev/shm. Linux 6.5 and later cannot page-lock files of an ordinary disk."""
    with tempfile.TemporaryDirectory(dir=segment.FOLDER) as made:
        monkeypatch.setattr(segment, "FOLDER", Path(made))
        yield Path(made)


@pytest.mark.parametrize("policy", POLICIES)
def test_pool_outlives_its_readers(policy: Policy, folder: Path) -> None:
    need(policy, shared=True)
    backbone = Backbone(Place(policy, GPU))
    delivered = kill_readers(backbone, 20)
    assert WRONG not in delivered
    assert set(backbone.published) <= set(delivered)
    assert backbone.ledger.counts().balanced
    backbone.pool.close()
    assert list(folder.iterdir()) == []
    assert torch.ones(1, device=GPU).item() == 1, "the GPU no longer works"


@pytest.mark.parametrize("policy", POLICIES)
def test_reader_outlives_the_owners_of_its_pools(policy: Policy, folder: Path) -> None:
    need(policy, shared=True)
    head = Head()
    for _ in range(3):
        with Child.spawned(policy) as child:
            numbers = read_until_killed(head, child, LIFE_S)
        assert numbers == list(range(len(numbers)))
    assert len(remove_leftovers()) == 1
    assert list(folder.iterdir()) == []
