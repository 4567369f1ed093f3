"""ROS domains that no other test on this machine uses at the same time."""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def own_domain(name: str) -> Iterator[int]:
    """Reserves a domain for this process and its children. ``name`` decides where the search for a free one starts."""
    start = zlib.crc32(f"{os.getpid()} {name}".encode())
    with socket.socket() as claim:
        for step in range(100):
            domain = 1 + (start + step) % 100
            try:
                # A port of the domain's block that DDS does not use. Its holder has the domain.
                claim.bind(("127.0.0.1", 7400 + 250 * domain + 249))
                break
            except OSError:
                continue
        else:
            pytest.fail("all ROS domains from 1 to 100 are taken by other test runs")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ROS_DOMAIN_ID", str(domain))
            # The test exchanges no messages with other machines.
            patch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
            yield domain
