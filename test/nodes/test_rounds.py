"""A node that is configured and cleaned up repeatedly gives all its resources back."""

from __future__ import annotations

import pytest
from rclpy.context import Context
from ros_processes import LIGHT, Footprint, Process
from ros_support import START_S, Client

ROUNDS = 50
SETTLED = 20  # rounds after which caches and pools of threads are as they will be
MB = 2**20
SLACK_BYTES = 32 * MB  # what allocators keep; segments that were kept would be some 400 MB
pytestmark = pytest.mark.timeout(4 * START_S)


@pytest.mark.parametrize("transport", ["intra_process", "shared_memory"])
def test_lifecycle_rounds_leak_nothing(context: Context, transport: str) -> None:
    arguments = [*LIGHT, "-p", "autostart:=false", "-p", f"transport:={transport}"]
    arguments += ["-p", "pool_slots:=64", "-p", "source:=none"]
    client = Client(context)
    try:
        with Process("pipeline", "--ros-args", *arguments) as process:
            seen, segments = [], set()
            client.state("camera")  # once it answers, all nodes are there
            for turn in range(ROUNDS):
                for transition in ("configure", "activate", "deactivate", "cleanup"):
                    for node in ("head", "backbone"):
                        assert client.transition(node, transition), (turn, node, transition, process.printed)
                    if transition == "activate":
                        segments |= process.slot_segments
                seen.append(Footprint.of(process.pid))
            early, late = seen[SETTLED : SETTLED + 10], seen[-10:]
            for kind, slack in (("memory", SLACK_BYTES), ("threads", 0), ("files", 0), ("segments", 0)):
                before, after = (max(getattr(one, kind) for one in some) for some in (early, late))
                assert after <= before + slack, (kind, [getattr(one, kind) for one in seen])
            assert len(segments) == (ROUNDS if transport == "shared_memory" else 0)
            assert process.slot_segments == set()
            assert not any(segment.exists() for segment in segments)
    finally:
        client.close()
