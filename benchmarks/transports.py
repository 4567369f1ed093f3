"""The three ways from backbone to head beside plain DDS, and images in with the shipped Fast DDS profile.

The features of one batch in three sizes go from the backbone to the head: within a process, through shared memory to
another process, and by value over DDS as to another host. The hop is from the handle's publication to the head's
start, as the nodes themselves report it; plain DDS is a message of the same size to a callback that does nothing, at
the same pace. Throughput is of the whole pipeline, with a camera that is too fast. Rivals take turns in one run.

Images of 1920x1080 pixels are sent from one process to another with the profile of this package and with none.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _dds_hop import dds_hop
from _ros import Observer, Processes, own_domain

from split_infer_ros.msg import PipelineReport
from split_infer_ros.nodes.process import PROFILE_VARIABLES
from split_infer_ros.telemetry.report import AT_MOST, Claim, Panel, Report, arguments, deliver

PROFILE = Path(__file__).parents[1] / "config" / "fastdds.xml"
SHIPPED, DEFAULT = "shipped profile", "default profile"
TRANSPORTS = ("intra_process", "shared_memory", "network")
DDS = "plain DDS"
FEED = "feed"  # the name of the cameras, each a process of its own
# bytes of a batch: the cut and the batch that give them
SIZES = {268_800: ("output", 2), 4_915_200: ("stem.2", 1), 19_660_800: ("stem.2", 4)}
SMALL, _, LARGE = SIZES
PACE_HZ = 4.0  # frames a second that no head has to keep waiting
FULL_BATCHES_MS = 5000.0  # long enough that no batch goes before it is full
TOO_FAST_HZ = 400.0
PACED_S = 6.0  # the nodes report medians of ten seconds, in which no other size ran: rivals take turns


class Bench:
    """A pipeline for each transport, of which one at a time has images.

    Attributes:
        rows: all measurements.
        arrived: of 1080p images to best-effort readers, the part that arrived.
    """

    def __init__(self, observer: Observer) -> None:
        self.rows: list[dict[str, Any]] = []
        self.arrived: dict[str, list[float]] = {}
        self._observer = observer
        self._reports: dict[str, PipelineReport] = {}
        for name in TRANSPORTS:
            observer.hear(PipelineReport, f"/{name}/report", lambda report, name=name: self._hear(name, report))

    def _hear(self, name: str, report: PipelineReport) -> None:
        self._reports[name] = report

    def measure(self, name: str, size: int, turn: int, seconds: float) -> tuple[float, float]:
        """The median hop in seconds at a moderate pace, and frames/s when too many come."""
        split_point, batch = SIZES[size]
        camera, backbone = f"/{name}/{FEED}", f"/{name}/backbone"
        self._observer.set(backbone, split_point=split_point, batch_size=batch, batch_timeout_ms=FULL_BATCHES_MS)
        self._observer.set(camera, rate_hz=PACE_HZ)
        self._observer.transition(camera, "activate")
        time.sleep(PACED_S)
        hop = self._reports[name].hop_p50_ms / 1e3
        self._observer.set(camera, rate_hz=TOO_FAST_HZ)
        time.sleep(1.0)
        before = self._reports[name]
        time.sleep(seconds)
        after = self._reports[name]
        self._observer.transition(camera, "deactivate")
        if math.isnan(hop) or after.published == before.published:
            dropped = {entry.reason: entry.count for entry in after.dropped}
            raise RuntimeError(f"Nothing came through {name} with {size:,} bytes a batch; dropped: {dropped}.")
        frames = (after.published - before.published) / (after.time - before.time)
        row = {"what": "transport", "rival": name, "round": turn, "bytes": size, "batch": batch}
        self.rows.append({**row, "hop_p50_ms": 1e3 * hop, "frames_per_s": frames})
        print(f"{turn}, {name}, {size:,} bytes: hop {1e3 * hop:.3f} ms, {frames:.1f} frames/s", flush=True)
        return hop, frames

    def measure_dds(self, size: int, turn: int, messages: int) -> float:
        """The median seconds of a message of that size."""
        hop = dds_hop(size, messages, SIZES[size][1] / PACE_HZ)
        self.rows.append({"what": "hop", "rival": DDS, "round": turn, "bytes": size, "hop_p50_ms": 1e3 * hop})
        print(f"{turn}, {DDS}, {size:,} bytes: hop {1e3 * hop:.3f} ms", flush=True)
        return hop

    def measure_images(self, profile: str | None, name: str, turn: int, count: int) -> float:
        """The median seconds of a 1080p image with that profile; also how many a best-effort reader gets."""
        environment = {key: value for key, value in os.environ.items() if key not in PROFILE_VARIABLES}
        if profile is not None:
            environment[PROFILE_VARIABLES[0]] = profile
        found = {}
        for reliability in ("reliable", "best_effort"):
            command = [sys.executable, str(Path(__file__).with_name("_image_hop.py")), str(count), reliability]
            printed = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
            hop, arrived = found[reliability] = tuple(map(float, printed.split()))
            row = {"what": "1080p", "rival": name, "reliability": reliability, "round": turn, "arrived": arrived}
            self.rows.append({**row, "hop_p50_ms": None if math.isnan(hop) else 1e3 * hop})
            print(f"{turn}, 1080p, {name}, {reliability}: {1e3 * hop:.2f} ms, {arrived:.0%} arrived", flush=True)
        self.arrived.setdefault(name, []).append(found["best_effort"][1])
        return found["reliable"][0]


def run(rounds: int, seconds: float, messages: int) -> Report:
    """Start everything and measure.

    Args:
        rounds: how often the rivals take turns.
        seconds: how long each throughput is measured.
        messages: sent through plain DDS, of each size, in each round.
    """
    os.environ["ROS_DOMAIN_ID"] = str(own_domain())
    os.environ.setdefault(PROFILE_VARIABLES[0], str(PROFILE))
    hops: dict[tuple[str, int], list[float]] = {}
    frames: dict[tuple[str, int], list[float]] = {}
    images: dict[str, list[float]] = {SHIPPED: [], DEFAULT: []}
    with Processes() as processes, Observer() as observer:
        bench = Bench(observer)
        for turn in range(1, rounds + 1):  # before the pipelines, which are quiet but not without work
            for name, profile in ((SHIPPED, str(PROFILE)), (DEFAULT, None)):
                images[name].append(bench.measure_images(profile, name, turn, messages))
        start(processes)
        for name in TRANSPORTS:
            observer.wait_for_nodes(f"/{name}/image", f"/{name}/report")
            observer.transition(f"/{name}/{FEED}", "deactivate")  # until its turn
        for turn in range(1, rounds + 1):
            for size in SIZES:
                for name in TRANSPORTS:
                    hop, rate = bench.measure(name, size, turn, seconds)
                    hops.setdefault((name, size), []).append(hop)
                    frames.setdefault((name, size), []).append(rate)
                hops.setdefault((DDS, size), []).append(bench.measure_dds(size, turn, messages))
    return Report("transports", claims(hops, frames, images, bench.arrived), bench.rows, panels(hops, frames, images))


def start(processes: Processes) -> None:
    """Start a pipeline for each transport; its camera's images are small, so that features are what is moved."""
    model = {"model": "shapes", "weights": "none"}
    for name in TRANSPORTS:
        if name == "intra_process":
            processes.start(["-m", "split_infer_ros.nodes.pipeline"], name, **model, source="none")
        else:
            for node in ("head", "backbone"):
                processes.start(["-m", f"split_infer_ros.nodes.{node}"], name, **model, transport=name)
        processes.start(["-m", "split_infer_ros.nodes.camera"], name, name=FEED, width=64, height=48)


def claims(
    hops: dict[tuple[str, int], list[float]],
    frames: dict[tuple[str, int], list[float]],
    images: dict[str, list[float]],
    arrived: dict[str, list[float]],
) -> list[Claim]:
    """What was to be shown."""
    shipped, default = images[SHIPPED], images[DEFAULT]
    in_process, shared, network, dds = ((name, LARGE) for name in (*TRANSPORTS, DDS))
    return [
        Claim("hop in process at 20 MB, times faster than DDS", ratio(hops[dds], hops[in_process]), "x", 30.0),
        Claim("hop through shared memory at 20 MB, times faster", ratio(hops[dds], hops[shared]), "x", 10.0),
        Claim(
            "hop through shared memory at 20 MB, times that at 0.3 MB",
            ratio(hops[shared], hops["shared_memory", SMALL]),
            "x",
            2.0,
            AT_MOST,
        ),
        Claim("hop of network at 20 MB, times plain DDS", ratio(hops[network], hops[dds]), "x", 2.0, AT_MOST),
        Claim("frames/s with shared memory, part of in process", ratio(frames[shared], frames[in_process]), "x", 0.8),
        Claim("1080p image, part of the default profile's time", ratio(shipped, default), "x", 1 / 3, AT_MOST),
        Claim("1080p images that best-effort readers get", statistics.median(arrived[SHIPPED]), "", 0.95),
    ]


def panels(
    hops: dict[tuple[str, int], list[float]], frames: dict[tuple[str, int], list[float]], images: dict[str, list[float]]
) -> list[Panel]:
    """What the picture shows."""
    found = [
        Panel(f"hop p50, {size / 1e6:.1f} MB", "ms", {name: in_ms(hops[name, size]) for name in (*TRANSPORTS, DDS)})
        for size in SIZES
    ]
    found.append(Panel("frames/s, 19.7 MB a batch of 4", "1/s", {name: frames[name, LARGE] for name in TRANSPORTS}))
    found.append(
        Panel("1080p image, process to process", "ms", {name: in_ms(values) for name, values in images.items()})
    )
    return found


def ratio(these: Sequence[float], those: Sequence[float]) -> float:
    """The median over the rounds of the two's ratio in the same round."""
    return statistics.median(one / other for one, other in zip(these, those, strict=True))


def in_ms(seconds: Sequence[float]) -> list[float]:
    """Seconds as milliseconds."""
    return [1e3 * value for value in seconds]


def main() -> int:
    """Run the benchmark."""
    chosen = arguments(__doc__).parse_args()
    deliver(run(1, 3.0, 10) if chosen.quick else run(5, 10.0, 100), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
