"""The three ways from backbone to head beside plain DDS, and images in with the shipped Fast DDS profile.

The features of a batch go from the backbone to the head: within a process, through shared memory to another process,
and by value over DDS as to another host. Rivals take turns, each quiet while another has its turn. Times are those of
the backbone's own trace, which all processes' common clock makes comparable.

Hop: batches go one at a time, each when the last one is done; the time is from the end of the backbone to the start of
the head (of `network`, as its two clocks are not compared: both ways). Plain DDS is a message of the same size to a
callback that does nothing, about as often. Frames/s: the images of some batches come at once and wait in the
middleware; the time is from the start of the first batch's backbone until the last batch is done.

Images of 1920x1080 pixels are sent one at a time from one process to another, with the profile of this package and with
none.

A quick run has fewer sizes, and frames/s of two transports: what the claims are about.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import _transport_pipeline as pipelines
import cv2
import numpy as np
from _dds_hop import DdsHop
from _feed import Feed
from _image_hop import BEST_EFFORT, RELIABLE, ImageHop
from _process_usage import ProcessUsage
from _ros import PROFILE, Observer, Processes, seconds_of_turns, set_up_middleware
from _rows import in_ms, measured
from _trace import Trace, busy
from _transport_pipeline import TransportPipeline

from split_infer_ros.nodes.process import PROFILE_VARIABLES
from split_infer_ros.telemetry.claim import AT_MOST, Claim
from split_infer_ros.telemetry.estimate import mean, ratio
from split_infer_ros.telemetry.picture import Panel
from split_infer_ros.telemetry.report import Report, arguments, deliver, show
from split_infer_ros.telemetry.turns import Contest, rotated, take_turns
from split_infer_ros.telemetry.usage import Usage

IN_PROCESS, SHARED, NETWORK = TRANSPORTS = ("intra_process", "shared_memory", "network")
DDS = "plain DDS"
# bytes of a batch: the split point and the batch that give them
SIZES = {268_800: ("output", 2), 4_915_200: ("stem.2", 1), 19_660_800: ("stem.2", 4)}
SMALL, _, LARGE = SIZES
QUICK = {LARGE: (*TRANSPORTS, DDS), SMALL: (SHARED,)}
SHIPPED, DEFAULT = "shipped", "default"  # profiles
BATCHES = 1  # of each size, in a turn of a transport; and messages through DDS
BURST = 4  # batches at once
IMAGES = 2  # in a turn
DDS_PERIOD_S = 0.1
PICTURE = 48, 64  # small, so that features are what is moved
FULL_S = 600.0


class Bench:
    """A pipeline for each transport, and a pair of processes for each profile.

    Attributes:
        usage: of the transports' processes, in the hops' and in the frames' turns; and of the profiles'.
        here: the usage of this process, while messages go through DDS.
    """

    def __init__(
        self,
        transports: Mapping[str, TransportPipeline],
        images: Mapping[str, ImageHop],
        dds: DdsHop,
        processes: Mapping[str, Sequence[int]],
        is_quick: bool,
    ) -> None:
        self._transports = transports
        self._images = images
        self._dds = dds
        self._is_quick = is_quick
        self._hops = QUICK if is_quick else dict.fromkeys(SIZES, (*TRANSPORTS, DDS))
        self.usage = {what: ProcessUsage(processes) for what in ("hop", "frames", "1080p")}
        self.here = Usage()

    def hop(self, turn: int) -> dict[str, float]:
        """A few batches through each transport, and messages through DDS: median seconds."""
        found = {}
        for size, rivals in self._hops.items():
            for rival in rotated(rivals, turn):
                if rival == DDS:
                    with self.here.of(DDS):
                        found[f"{rival} {size}"] = self._dds.median(size, BATCHES, DDS_PERIOD_S)
                else:
                    self._transports[rival].set(*SIZES[size])
                    with self.usage["hop"].of(rival):
                        batches = self._transports[rival].one_by_one(BATCHES)
                    found[f"{rival} {size}"] = statistics.median(batch.hop_s for batch in batches)
        return found

    def frames(self, turn: int) -> dict[str, float]:
        """Large batches at once through each transport: frames/s, and how busy the stages were."""
        found = {}
        for rival in rotated(TRANSPORTS[:2] if self._is_quick else TRANSPORTS, turn):
            self._transports[rival].set(*SIZES[LARGE])
            with self.usage["frames"].of(rival):
                batches = self._transports[rival].burst(BURST)
            begin, end = batches[0].backbone[0], batches[-1].delivered
            found[rival] = sum(batch.frames for batch in batches) / (end - begin)
            found |= {f"{rival} {stage}": share for stage, share in busy(batches, begin, end).items()}
        return found

    def images(self, turn: int) -> dict[str, float]:
        """Some 1080p images with each profile: median seconds, and the part that best-effort readers get."""
        found = {}
        for profile in rotated((SHIPPED, DEFAULT), turn):
            with self.usage["1080p"].of(profile):
                found[profile] = self._images[profile].measure(RELIABLE, IMAGES)[0]
                if profile == SHIPPED or not self._is_quick:
                    found[f"{profile} arrived"] = self._images[profile].measure(BEST_EFFORT, IMAGES)[1]
        return found


def run(chosen: argparse.Namespace) -> Report:
    """Start everything and measure."""
    set_up_middleware()
    with ExitStack() as all_of_it:
        folder = Path(all_of_it.enter_context(tempfile.TemporaryDirectory()))
        draw_picture(folder / "pictures")
        processes = all_of_it.enter_context(Processes())
        traces = {name: folder / f"{name}.json" for name in TRANSPORTS}
        numbers = {name: pipelines.start(processes, name, str(trace)) for name, trace in traces.items()}
        images = {name: all_of_it.enter_context(ImageHop(name, environment(name))) for name in (SHIPPED, DEFAULT)}
        feed = all_of_it.enter_context(Feed(folder / "pictures", [pipelines.image_topic(name) for name in TRANSPORTS]))
        observer = all_of_it.enter_context(Observer())
        dds = all_of_it.enter_context(DdsHop(list(SIZES)))
        numbers |= {name: hop.ready() for name, hop in images.items()}
        for name in TRANSPORTS:
            pipelines.wait_for(observer, name)
        transports = {name: TransportPipeline(name, observer, feed, Trace(trace)) for name, trace in traces.items()}
        for transport in transports.values():
            transport.set(*SIZES[LARGE])
        bench = Bench(transports, images, dds, numbers, chosen.quick)
        contests = [
            Contest("hop", bench.hop, of_hops),
            Contest("frames", bench.frames, of_frames),
            Contest("1080p", bench.images, of_images),
        ]
        take_turns(contests, seconds_of_turns(chosen, FULL_S))
        return conclude(*contests, bench)


def draw_picture(folder: Path) -> None:
    """Fill a folder with an image."""
    folder.mkdir()
    cv2.imwrite(str(folder / "noise.bmp"), np.random.default_rng(0).integers(0, 255, (*PICTURE, 3), np.uint8))


def environment(profile: str) -> dict[str, str]:
    """That of processes with the shipped profile, or with none."""
    without = {key: value for key, value in os.environ.items() if key not in PROFILE_VARIABLES}
    return without | {PROFILE_VARIABLES[0]: str(PROFILE)} if profile == SHIPPED else without


def of_hops(contest: Contest) -> list[Claim]:
    """What the hops show."""
    figures, turn_s = contest.figures, contest.turn_s
    in_process, shared, network, dds = (figures[f"{name} {LARGE}"] for name in (*TRANSPORTS, DDS))
    flat = ratio(shared, figures[f"{SHARED} {SMALL}"])
    return [
        Claim("hop in process at 20 MB, times faster than DDS", ratio(dds, in_process), "x", 30.0, turn_s=turn_s),
        Claim("hop through shared memory at 20 MB, times faster", ratio(dds, shared), "x", 10.0, turn_s=turn_s),
        Claim("hop through shared memory at 20 MB, times that at 0.3 MB", flat, "x", 2.0, AT_MOST, turn_s=turn_s),
        Claim("hop of network at 20 MB, times plain DDS", ratio(network, dds), "x", 2.0, AT_MOST, turn_s=turn_s),
    ]


def of_frames(contest: Contest) -> list[Claim]:
    """What the bursts show."""
    kept = ratio(contest.figures[SHARED], contest.figures[IN_PROCESS])
    return [Claim("frames/s with shared memory, part of in process", kept, "x", 0.8, turn_s=contest.turn_s)]


def of_images(contest: Contest) -> list[Claim]:
    """What the images show."""
    figures, turn_s = contest.figures, contest.turn_s
    sooner, arrived = ratio(figures[SHIPPED], figures[DEFAULT]), mean(figures[f"{SHIPPED} arrived"])
    return [
        Claim("1080p image, part of the default profile's time", sooner, "x", 1 / 3, AT_MOST, turn_s=turn_s),
        Claim("1080p images that best-effort readers get", arrived, "", 0.95, turn_s=turn_s),
    ]


def conclude(hop: Contest, frames: Contest, images: Contest, bench: Bench) -> Report:
    """The claims, and what they rest on."""
    rows = [*rows_of_hops(hop, bench), *rows_of_frames(frames, bench), *rows_of_images(images, bench)]
    for row in rows:
        show(row)
    large = {name: in_ms(hop.figures[f"{name} {LARGE}"]) for name in (*TRANSPORTS, DDS)}
    small = f"{SHARED} {SMALL}"
    profiles = {f"{name} profile": in_ms(images.figures[name]) for name in (SHIPPED, DEFAULT)}
    rates = {name: frames.figures[name] for name in TRANSPORTS if name in frames.figures}
    return Report(
        "transports",
        [*of_hops(hop), *of_frames(frames), *of_images(images)],
        rows,
        [
            Panel("hop, 19.7 MB", "ms", large),
            Panel("hop, shared memory", "ms", {"0.3 MB": in_ms(hop.figures[small]), "19.7 MB": large[SHARED]}),
            Panel("frames/s, 19.7 MB a batch of 4", "1/s", rates),
            Panel("1080p image, process to process", "ms", profiles),
        ],
    )


def rows_of_hops(hop: Contest, bench: Bench) -> list[dict[str, Any]]:
    """One row for each rival and size."""
    rows = []
    for size in SIZES:
        for name in (*TRANSPORTS, DDS):
            if (samples := hop.figures.get(f"{name} {size}")) is not None:
                usage = bench.here.row(DDS) if name == DDS else bench.usage["hop"].row(name)
                rows.append({"what": "hop", "rival": name, "bytes": size, **measured(hop_ms=in_ms(samples)), **usage})
    return rows


def rows_of_frames(frames: Contest, bench: Bench) -> list[dict[str, Any]]:
    """One row for each rival."""
    rows = []
    for name in TRANSPORTS:
        if name in frames.figures:
            stages = {stage: frames.figures[f"{name} {stage}"] for stage in ("backbone_busy", "head_busy")}
            found = measured(frames_per_s=frames.figures[name], **stages)
            rows.append({"what": "frames", "rival": name, "bytes": LARGE, **found, **bench.usage["frames"].row(name)})
    return rows


def rows_of_images(images: Contest, bench: Bench) -> list[dict[str, Any]]:
    """One row for each profile."""
    rows = []
    for name in (SHIPPED, DEFAULT):
        row = {"what": "1080p", "rival": f"{name} profile", **measured(hop_ms=in_ms(images.figures[name]))}
        if (arrived := images.figures.get(f"{name} arrived")) is not None:
            row["best_effort_arrived"] = math.fsum(arrived) / len(arrived)
        rows.append({**row, **bench.usage["1080p"].row(name)})
    return rows


def main() -> int:
    """Run the benchmark."""
    chosen = arguments(__doc__).parse_args()
    deliver(run(chosen), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
