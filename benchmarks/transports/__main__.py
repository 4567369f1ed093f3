"""Compares the three transports from backbone to head with plain DDS, and two Fast DDS profiles for images.

A batch's features go from the backbone to the head. They stay within a process, go through shared memory to another
process, or are copied over DDS, as to another host. Rivals take turns, and the others are quiet meanwhile. All times
come from the backbone's own trace, on the steady clock that all processes share.

The hop is the time from the end of the backbone to the start of the head. Batches go one at a time, each when the batch
before is done. For `network`, the hop is the time both ways, because that transport does not compare the clocks of two
hosts. Plain DDS is a message of the same size to a callback that does nothing, sent about as often.

For frames per second, the images of several batches come at once and wait in the middleware. The time is from the start
of the first batch's backbone until the last batch is done.

Images of 1920x1080 pixels go one at a time from one process to another, with this package's profile and with none.

A quick run has fewer sizes, and measures frames per second only for the two transports that have claims.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import mean, ratio
from benchmarks.common.picture import Panel
from benchmarks.common.report import Report, run_command, show
from benchmarks.common.rows import in_ms, measured
from benchmarks.common.turns import Contest, take_turns
from benchmarks.ros.dds_hop import DdsHop
from benchmarks.ros.feed import Feed
from benchmarks.ros.observer import Observer
from benchmarks.ros.processes import PROFILE, Processes, seconds_of_turns, set_up_middleware
from benchmarks.ros.trace import Trace
from benchmarks.transports import pipeline as transport_pipeline
from benchmarks.transports.image_hop import ImageHop
from benchmarks.transports.pipeline import TransportPipeline
from benchmarks.transports.turns import (
    DDS,
    DEFAULT,
    IN_PROCESS,
    LARGE,
    SHARED,
    SHIPPED,
    SIZES,
    SMALL,
    TRANSPORTS,
    Bench,
)
from split_infer_ros.nodes.process import PROFILE_VARIABLES

IMAGE_SIZE = 48, 64  # height and width; small, so that most of the moved bytes are features
FULL_S = 600.0


def run(chosen: argparse.Namespace) -> Report:
    """Starts all processes, measures, and returns the report."""
    set_up_middleware()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        draw_picture(folder / "pictures")
        processes = stack.enter_context(Processes())
        traces = {name: folder / f"{name}.json" for name in TRANSPORTS}
        process_ids = {name: transport_pipeline.start(processes, name, str(trace)) for name, trace in traces.items()}
        images = {name: stack.enter_context(ImageHop(name, environment(name))) for name in (SHIPPED, DEFAULT)}
        feed = stack.enter_context(
            Feed(folder / "pictures", [transport_pipeline.image_topic(name) for name in TRANSPORTS])
        )
        observer = stack.enter_context(Observer())
        dds = stack.enter_context(DdsHop(list(SIZES)))
        process_ids |= {name: hop.wait_until_ready() for name, hop in images.items()}
        for name in TRANSPORTS:
            transport_pipeline.wait_for(observer, name)
        transports = {name: TransportPipeline(name, observer, feed, Trace(trace)) for name, trace in traces.items()}
        for transport in transports.values():
            transport.set(*SIZES[LARGE])
        bench = Bench(transports, images=images, dds=dds, processes=process_ids, is_quick=chosen.quick)
        contests = [
            Contest("hop", bench.hop, hop_claims),
            Contest("frames", bench.frames, frame_claims),
            Contest("1080p", bench.images, image_claims),
        ]
        take_turns(contests, seconds_of_turns(chosen, FULL_S))
        return conclude(*contests, bench)


def draw_picture(folder: Path) -> None:
    """Writes an image of noise to a new folder."""
    folder.mkdir()
    cv2.imwrite(str(folder / "noise.bmp"), np.random.default_rng(0).integers(0, 255, (*IMAGE_SIZE, 3), np.uint8))


def environment(profile: str) -> dict[str, str]:
    """Returns a process's environment: with the shipped Fast DDS profile if ``profile`` is SHIPPED, or without."""
    without = {key: value for key, value in os.environ.items() if key not in PROFILE_VARIABLES}
    return without | {PROFILE_VARIABLES[0]: str(PROFILE)} if profile == SHIPPED else without


def hop_claims(contest: Contest) -> list[Claim]:
    """Returns the claims about the hop."""
    figures, turn_s = contest.figures, contest.turn_s
    in_process, shared, network, dds = (figures[f"{name} {LARGE}"] for name in (*TRANSPORTS, DDS))
    flat = ratio(shared, figures[f"{SHARED} {SMALL}"])
    return [
        Claim("hop in process at 20 MB, times faster than DDS", ratio(dds, in_process), "x", 30.0, turn_s=turn_s),
        Claim("hop through shared memory at 20 MB, times faster", ratio(dds, shared), "x", 10.0, turn_s=turn_s),
        Claim(
            "hop through shared memory at 20 MB, times that at 0.3 MB", flat, "x", 2.0, Direction.AT_MOST, turn_s=turn_s
        ),
        Claim(
            "hop of network at 20 MB, times plain DDS", ratio(network, dds), "x", 2.0, Direction.AT_MOST, turn_s=turn_s
        ),
    ]


def frame_claims(contest: Contest) -> list[Claim]:
    """Returns the claim about frames per second."""
    kept = ratio(contest.figures[SHARED], contest.figures[IN_PROCESS])
    return [Claim("frames/s with shared memory, part of in process", kept, "x", 0.8, turn_s=contest.turn_s)]


def image_claims(contest: Contest) -> list[Claim]:
    """Returns the claims about 1080p images."""
    figures, turn_s = contest.figures, contest.turn_s
    sooner, arrived = ratio(figures[SHIPPED], figures[DEFAULT]), mean(figures[f"{SHIPPED} arrived"])
    return [
        Claim("1080p image, part of the default profile's time", sooner, "x", 1 / 3, Direction.AT_MOST, turn_s=turn_s),
        Claim("1080p images that best-effort readers get", arrived, "", 0.95, turn_s=turn_s),
    ]


def conclude(hop: Contest, frames: Contest, images: Contest, bench: Bench) -> Report:
    """Returns the report: the claims, and the rows and figures behind them."""
    rows = [*rows_of_hops(hop, bench), *rows_of_frames(frames, bench), *rows_of_images(images, bench)]
    for row in rows:
        show(row)
    large = {name: in_ms(hop.figures[f"{name} {LARGE}"]) for name in (*TRANSPORTS, DDS)}
    small = f"{SHARED} {SMALL}"
    profiles = {f"{name} profile": in_ms(images.figures[name]) for name in (SHIPPED, DEFAULT)}
    rates = {name: frames.figures[name] for name in TRANSPORTS if name in frames.figures}
    return Report(
        "transports",
        [*hop_claims(hop), *frame_claims(frames), *image_claims(images)],
        rows,
        [
            Panel("hop, 19.7 MB", "ms", large),
            Panel("hop, shared memory", "ms", {"0.3 MB": in_ms(hop.figures[small]), "19.7 MB": large[SHARED]}),
            Panel("frames/s, 19.7 MB a batch of 4", "1/s", rates),
            Panel("1080p image, process to process", "ms", profiles),
        ],
    )


def rows_of_hops(hop: Contest, bench: Bench) -> list[dict[str, Any]]:
    """Returns a row for each rival and size."""
    rows = []
    for size in SIZES:
        for name in (*TRANSPORTS, DDS):
            if (samples := hop.figures.get(f"{name} {size}")) is not None:
                usage = bench.own_usage.row(DDS) if name == DDS else bench.usage["hop"].row(name)
                rows.append({"what": "hop", "rival": name, "bytes": size, **measured(hop_ms=in_ms(samples)), **usage})
    return rows


def rows_of_frames(frames: Contest, bench: Bench) -> list[dict[str, Any]]:
    """Returns one row for each rival."""
    rows = []
    for name in TRANSPORTS:
        if name in frames.figures:
            stages = {stage: frames.figures[f"{name} {stage}"] for stage in ("backbone_busy", "head_busy")}
            found = measured(frames_per_s=frames.figures[name], **stages)
            rows.append({"what": "frames", "rival": name, "bytes": LARGE, **found, **bench.usage["frames"].row(name)})
    return rows


def rows_of_images(images: Contest, bench: Bench) -> list[dict[str, Any]]:
    """Returns one row for each profile."""
    rows = []
    for name in (SHIPPED, DEFAULT):
        row = {"what": "1080p", "rival": f"{name} profile", **measured(hop_ms=in_ms(images.figures[name]))}
        if (arrived := images.figures.get(f"{name} arrived")) is not None:
            row["best_effort_arrived"] = math.fsum(arrived) / len(arrived)
        rows.append({**row, **bench.usage["1080p"].row(name)})
    return rows


def main() -> int:
    """Runs the benchmark."""
    return run_command(__doc__, run)


if __name__ == "__main__":
    sys.exit(main())
