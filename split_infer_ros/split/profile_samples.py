"""All samples behind a profile, and their form in the database."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.split.profile import CoRun, Profile, ProfilePoint
from split_infer_ros.split.split_points import SplitPoint

PREPROCESS, BACKBONE, HAND_OVER, HEAD, DECODE = ALONE = ("preprocess", "backbone", "hand_over", "head", "decode")
PERIOD, BACKBONE_BUSY, HEAD_BUSY = "period", "backbone_busy", "head_busy"  # of a saturated pipeline


@dataclass(frozen=True)
class Samples:
    """What was measured of one split point at one batch size.

    Attributes:
        cut: its name.
        batch_size: images a batch.
        parts: seconds a batch, several samples of each: those in ``ALONE``, and where it was run as a pipeline
            the time between two batches, and a batch's in either stage.
    """

    split_point: str
    batch_size: int
    parts: Mapping[str, tuple[float, ...]]

    @property
    def complete(self) -> bool:
        """True if every stage was measured alone."""
        return all(self.parts.get(part) for part in ALONE)

    def point(self, bytes_per_image: int) -> ProfilePoint:
        """The medians."""
        preprocess, backbone, hand_over, head, decode = (statistics.median(self.parts[part]) for part in ALONE)
        period = self.parts.get(PERIOD)
        return ProfilePoint(
            self.split_point,
            self.batch_size,
            bytes_per_image,
            preprocess,
            backbone,
            hand_over,
            head,
            decode,
            statistics.median(period) if period else math.nan,
        )


def make_profile(model: str, device: str, split_points: Sequence[SplitPoint], samples: Iterable[Samples]) -> Profile:
    """The profile of samples that are complete, in the order of the split points.

    Stages slow each other down as was seen where the two are most alike; where nothing was run, not at all.
    """
    by_place = {(found.batch_size, found.split_point): found for found in samples}
    bytes_of = {split_point.name: split_point.bytes_per_image for split_point in split_points}
    points = [
        by_place[size, split_point].point(bytes_of[split_point])
        for size in sorted({size for size, _ in by_place})
        for split_point in bytes_of
        if (size, split_point) in by_place
    ]
    return Profile(model, device, tuple(points), _co_run(by_place, points))


def _co_run(by_place: Mapping[tuple[int, str], Samples], points: Sequence[ProfilePoint]) -> CoRun:
    run = [point for point in points if by_place[point.batch_size, point.split_point].parts.get(HEAD_BUSY)]
    if not run:
        return CoRun()
    alike = min(run, key=lambda point: abs(math.log(point.backbone_stage_s / point.head_stage_s)))
    parts = by_place[alike.batch_size, alike.split_point].parts
    busy = statistics.median(parts[BACKBONE_BUSY]), statistics.median(parts[HEAD_BUSY])
    return CoRun.seen((alike.backbone_stage_s, alike.head_stage_s), busy)


def to_records(samples: Iterable[Samples], key: Key, task: Mapping[str, Any]) -> list[Record]:
    """One record for each part of each split point at each batch size."""
    now = time.time()
    return [
        Record(
            *(key.target, key.versions_for(task), task),
            {"split_point": found.split_point, "batch_size": found.batch_size, "part": part},
            costs,
            time=now,
        )
        for found in samples
        for part, costs in found.parts.items()
    ]


def from_records(records: Iterable[Record], split_points: Sequence[SplitPoint]) -> list[Samples]:
    """The complete batch sizes among records of one task, oldest first; of those measured twice the later ones."""
    parts: dict[tuple[int, str], dict[str, tuple[float, ...]]] = {}
    for record in records:
        size, split_point, part = (record.config.get(name) for name in ("batch_size", "split_point", "part"))
        if record.error is None and isinstance(size, int) and isinstance(split_point, str) and isinstance(part, str):
            if part == PREPROCESS:  # the first of its kind: what follows was measured with it
                parts[size, split_point] = {}
            parts.setdefault((size, split_point), {})[part] = record.costs
    found = {place: Samples(place[1], place[0], costs) for place, costs in parts.items()}
    sizes = sorted({size for size, _ in found})
    return [
        found[size, split_point.name]
        for size in sizes
        if all(
            (size, split_point.name) in found and found[size, split_point.name].complete for split_point in split_points
        )
        for split_point in split_points
    ]
