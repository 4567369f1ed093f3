"""Compares the pipeline with a node written the usual way: frames per second, latency, and the hop between stages.

Both rivals get the same 640x480 images and run the same MobileNetV2 on the same machine in the same run. The model is
untrained, which does not change its speed. torch computes in fp32 unless a program asks for something else, so there is
one node written the usual way: the naive node. Each rival has a process of its own. A camera in a second process sends
images over DDS to the rival, and an observer in a third process receives the rival's detections. The rivals take turns
of about a second. The camera sends to one rival at a time. The next turn begins once nothing of the turn before is in
flight. Each claim
is the median over all turns of the ratio of the two rivals in the same turn.

For frames per second, the camera sends one and a half times as many frames as the rival can serve. It sends no more,
because receiving images costs time. The pipeline then uses batches of four. For latency, the camera sends at half the
naive node's rate, and the batch size is 1. Latency is from the image's stamp to the detections' arrival. The same turns
measure the hop from the end of the backbone to the start of the head. The hop's rival is a message through DDS within
this process, one at a time and at the same pace.

Memory is the peak of a rival's process since its start. A full run has one more rival: the pipeline with the
camera in its own process.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common.child_process import to_run
from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import ratio
from benchmarks.common.picture import Panel
from benchmarks.common.report import Report, run_command, show
from benchmarks.common.rows import in_ms, measured
from benchmarks.common.turns import Contest, take_turns
from benchmarks.pipeline.turns import DDS, HOP, LARGE, NAIVE, SMALL, WITH_CAMERA, Bench, camera_of
from benchmarks.ros.dds_hop import DdsHop
from benchmarks.ros.feed import Feed
from benchmarks.ros.observer import Observer
from benchmarks.ros.pictures import draw_pictures
from benchmarks.ros.processes import Processes, seconds_of_turns, set_up_middleware
from benchmarks.ros.rival_turns import BACKBONE_BUSY, HEAD_BUSY, LATENCY, PIPELINE, SATURATION
from benchmarks.ros.trace import Trace

FULL_S = 300.0


def run(chosen: argparse.Namespace) -> Report:
    """Starts all processes, measures, and returns the report."""
    set_up_middleware()
    with tempfile.TemporaryDirectory() as folder, Processes() as processes:
        pictures, trace = Path(folder, "pictures"), Path(folder, "trace.json")
        draw_pictures(pictures)
        process_ids = start(processes, trace, f"folder:{pictures}", with_camera=not chosen.quick)
        topics = [f"/{rival}/image" for rival in (PIPELINE, NAIVE)]
        with Feed(pictures, topics) as feed, Observer() as observer, DdsHop((SMALL, LARGE)) as dds:
            bench = Bench(observer, feed, Trace(trace), dds, process_ids)
            observer.wait_for_nodes(*topics)
            for rival in process_ids:
                observer.wait_for_nodes(f"/{rival}/detections")
            if WITH_CAMERA in process_ids:
                observer.transition(camera_of(WITH_CAMERA), "deactivate")  # until its first turn
            bench.warm_up()
            contests = [
                Contest(SATURATION, bench.saturate, throughput_claims),
                Contest(LATENCY, bench.pace, latency_claims),
            ]
            take_turns(contests, seconds_of_turns(chosen, FULL_S))
            return conclude(*contests, bench)


def start(processes: Processes, trace: Path, source: str, with_camera: bool) -> dict[str, list[int]]:
    """Starts the rivals; returns their process ids.

    Args:
        processes: starts the nodes.
        trace: the file to which the pipeline writes its trace.
        source: the parameter ``source`` of the pipeline with its own camera.
        with_camera: whether this pipeline takes part.
    """
    model = {"model": "mobilenet_v2", "weights": "none", "score_threshold": 0.0, "max_detections": 5}
    model |= {"improve": "before_start", "precision": "fp32", "objective": "throughput"}
    pipeline = ["-m", "split_infer_ros", "pipeline"]
    process_ids = {
        PIPELINE: [processes.start(pipeline, PIPELINE, **model, source="none", trace=str(trace))],
        NAIVE: [processes.start(to_run("benchmarks.rivals.naive_node"), NAIVE)],
    }
    if with_camera:
        process_ids[WITH_CAMERA] = [processes.start(pipeline, WITH_CAMERA, **model, source=source)]
    return process_ids


def throughput_claims(contest: Contest) -> list[Claim]:
    """Returns the claims about frames per second."""
    faster = ratio(contest.figures[PIPELINE], contest.figures[NAIVE])
    return [Claim("frames/s, times the naive node's", faster, "x", 3.0, turn_s=contest.turn_s)]


def latency_claims(contest: Contest) -> list[Claim]:
    """Returns the claims about latency and the hop."""
    figures, turn_s = contest.figures, contest.turn_s
    sooner = ratio(figures[PIPELINE], figures[NAIVE])
    small, large = (ratio(figures[f"{DDS} {size}"], figures[HOP]) for size in (SMALL, LARGE))
    return [
        Claim("latency p50, part of the naive node's", sooner, "x", 0.75, Direction.AT_MOST, turn_s=turn_s),
        Claim("hop, times faster than 64x1280 floats by DDS", small, "x", 5.0, turn_s=turn_s),
        Claim("hop, times faster than 4.9 MB by DDS", large, "x", 30.0, turn_s=turn_s),
    ]


def conclude(saturation: Contest, latency: Contest, bench: Bench) -> Report:
    """Returns the report: the claims, and the rows and figures behind them."""
    rows = rows_of(saturation, latency, bench)
    for row in rows:
        show(row)
    fast, moderate = saturation.figures, latency.figures
    rivals = [rival for rival in (PIPELINE, NAIVE, WITH_CAMERA) if rival in fast]
    dds = {f"{DDS} {size / 1e6:.2g} MB": moderate[f"{DDS} {size}"] for size in (SMALL, LARGE)}
    return Report(
        "pipeline",
        [*throughput_claims(saturation), *latency_claims(latency)],
        rows,
        [
            Panel("frames/s, camera too fast", "1/s", {rival: fast[rival] for rival in rivals}),
            Panel("latency p50, batch 1", "ms", {rival: in_ms(moderate[rival]) for rival in (PIPELINE, NAIVE)}),
            Panel("hop p50", "ms", {name: in_ms(values) for name, values in {PIPELINE: moderate[HOP], **dds}.items()}),
        ],
    )


def rows_of(saturation: Contest, latency: Contest, bench: Bench) -> list[dict[str, Any]]:
    """Returns a row for each rival in each contest."""
    rows: list[dict[str, Any]] = []
    for contest in (saturation, latency):
        figures = contest.figures
        stages = {name: figures[name] for name in (BACKBONE_BUSY, HEAD_BUSY)}
        for rival in (PIPELINE, NAIVE, WITH_CAMERA):
            if rival in figures:
                own = stages if rival == PIPELINE else {}
                if contest is saturation:
                    found = measured(frames_per_s=figures[rival], **own)
                else:
                    found = measured(latency_p50_ms=in_ms(figures[rival]), **own)
                rows.append({"what": contest.name, "rival": rival, **found, **bench.usage[contest.name].row(rival)})
    hop = measured(hop_p50_ms=in_ms(latency.figures[HOP]))
    rows.append({"what": HOP, "rival": PIPELINE, **hop})
    for size in (SMALL, LARGE):
        hop = measured(hop_p50_ms=in_ms(latency.figures[f"{DDS} {size}"]))
        rows.append({"what": HOP, "rival": DDS, "bytes": size, **hop, **bench.own_usage.row(DDS)})
    return rows


def main() -> int:
    """Runs the benchmark."""
    return run_command(__doc__, run)


if __name__ == "__main__":
    sys.exit(main())
