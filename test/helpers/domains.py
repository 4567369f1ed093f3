"""ROS domains that no other test on this machine uses at the same time."""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LOOPBACK_PROFILE = Path(__file__).with_name("fastdds_loopback.xml")


@contextmanager
def own_domain(name: str, kills: bool = False) -> Iterator[int]:
    """Yields the number of a ROS domain that is reserved for this process and its children.

    Args:
        name: decides where the search for a free domain starts.
        kills: whether nodes are killed in the domain. Child processes then use UDP alone, because all domains share
            Fast DDS's shared memory. A killed process can leave living processes unable to receive there (Fast DDS's
            issue 5469). This process itself uses UDP alone only if it had no participant before, because Fast DDS reads
            its profile once.
    """
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
            # Nodes exchange no messages with other machines: by their profile, or because the variable says so.
            if kills:  # LOCALHOST would add shared memory to what the profile says
                patch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "SUBNET")
                patch.setenv("FASTDDS_DEFAULT_PROFILES_FILE", str(LOOPBACK_PROFILE))
            else:
                patch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
            yield domain
