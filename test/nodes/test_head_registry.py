"""Which of several heads has the batches. The test decides the times."""

from __future__ import annotations

import pytest

from split_infer_ros.nodes.transports.head_registry import FORGET_AFTER_S, HeadRegistry

SILENT_S = 2.0


@pytest.fixture
def registry() -> HeadRegistry:
    return HeadRegistry(SILENT_S)


def test_first_head_is_active(registry: HeadRegistry) -> None:
    assert registry.active == ""
    registry.heartbeat("a", 0.0)
    registry.heartbeat("b", 0.0)
    for now in range(10):
        registry.heartbeat("b", now)
        registry.heartbeat("a", now)
        assert registry.active == "a"


def test_silent_head_is_replaced(registry: HeadRegistry) -> None:
    registry.heartbeat("a", 0.0)
    registry.heartbeat("b", 1.5)
    registry.update(2.0)
    assert registry.active == "a"
    registry.update(2.1)
    assert registry.active == "b"
    registry.heartbeat("a", 3.0)  # it was but late, and stands by from now on
    assert registry.active == "b"


def test_silent_head_without_rival_stays_active(registry: HeadRegistry) -> None:
    registry.heartbeat("a", 0.0)
    registry.update(50.0)
    assert registry.active == "a"
    registry.heartbeat("b", 51.0)
    assert registry.active == "b"


def test_leaving_head_is_replaced_at_once(registry: HeadRegistry) -> None:
    registry.heartbeat("a", 0.0)
    registry.heartbeat("b", 0.1)
    registry.heartbeat("c", 0.2)
    registry.remove("b", 0.3)
    assert registry.active == "a"
    registry.remove("a", 0.4)
    assert registry.active == "c"
    registry.remove("c", 0.5)
    assert registry.active == ""
    registry.remove("nobody", 0.6)
    assert registry.active == ""


def test_dead_heads_are_forgotten(registry: HeadRegistry) -> None:
    for number in range(100):
        registry.heartbeat(f"dead {number}", 0.0)
    registry.update(FORGET_AFTER_S + 1)
    assert registry.num_heads == 0
