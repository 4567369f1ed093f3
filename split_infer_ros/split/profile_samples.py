"""The samples from which a profile is made, and their records in the database."""

from __future__ import annotations

import enum
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.split.profile import Profile, ProfilePoint, StageContention
from split_infer_ros.split.split_points import SplitPoint


class ProfilePart(enum.Enum):
    """What a sample of a split point times, in seconds a batch.

    The first five are timed alone. The last three come from a saturated pipeline: the time between two batches, and the
    time of a batch in each stage.
    """

    PREPROCESS = "preprocess"
    BACKBONE = "backbone"
    HAND_OVER = "hand_over"
    HEAD = "head"
    DECODE = "decode"
    PERIOD = "period"
    BACKBONE_BUSY = "backbone_busy"
    HEAD_BUSY = "head_busy"


TIMED_ALONE = (
    ProfilePart.PREPROCESS,
    ProfilePart.BACKBONE,
    ProfilePart.HAND_OVER,
    ProfilePart.HEAD,
    ProfilePart.DECODE,
)

PointKey = tuple[int, str]  # batch size, name of the split point


@dataclass(frozen=True)
class PointSamples:
    """All samples of one split point at one batch size.

    Attributes:
        split_point: the name of the split point.
        batch_size: images a batch.
        parts: samples of each part, in seconds a batch. Those of a saturated pipeline are missing if none was
            run.
    """

    split_point: str
    batch_size: int
    parts: Mapping[ProfilePart, tuple[float, ...]]

    @property
    def is_complete(self) -> bool:
        """Whether every part of ``TIMED_ALONE`` was measured."""
        return all(self.parts.get(part) for part in TIMED_ALONE)

    def median_point(self, bytes_per_image: int) -> ProfilePoint:
        """Returns the profile's point, which has the median of each part."""
        medians = {part: statistics.median(samples) for part, samples in self.parts.items() if samples}
        return ProfilePoint(
            split_point=self.split_point,
            batch_size=self.batch_size,
            bytes_per_image=bytes_per_image,
            **{f"{part.value}_s": medians[part] for part in TIMED_ALONE},
            period_s=medians.get(ProfilePart.PERIOD, math.nan),
        )


def make_profile(
    *, model: str, device: str, split_points: Sequence[SplitPoint], samples: Iterable[PointSamples]
) -> Profile:
    """Makes a profile from samples. At each batch size, its points are in the order of the split points.

    The rates at which the stages run together are those of one pipeline: the one whose stages take the most similar
    times. The rates are 1 if no pipeline was run.

    Args:
        model: the model's name.
        device: where the backbone ran.
        split_points: the model's split points, in order.
        samples: complete samples; see ``PointSamples.is_complete``.
    """
    by_key = {(each.batch_size, each.split_point): each for each in samples}
    points = [
        by_key[size, split_point.name].median_point(split_point.bytes_per_image)
        for size in sorted({size for size, _ in by_key})
        for split_point in split_points
        if (size, split_point.name) in by_key
    ]
    return Profile(model=model, device=device, points=tuple(points), contention=_contention(by_key, points))


def _contention(by_key: Mapping[PointKey, PointSamples], points: Sequence[ProfilePoint]) -> StageContention:
    run = [point for point in points if by_key[point.batch_size, point.split_point].parts.get(ProfilePart.HEAD_BUSY)]
    if not run:
        return StageContention()
    balanced = min(run, key=lambda point: abs(math.log(point.backbone_stage_s / point.head_stage_s)))
    parts = by_key[balanced.batch_size, balanced.split_point].parts
    busy_s = statistics.median(parts[ProfilePart.BACKBONE_BUSY]), statistics.median(parts[ProfilePart.HEAD_BUSY])
    return StageContention.from_times((balanced.backbone_stage_s, balanced.head_stage_s), busy_s)


def to_records(samples: Iterable[PointSamples], key: Key, task: Mapping[str, Any]) -> list[Record]:
    """Returns one record for each part of each split point at each batch size.

    Args:
        samples: the samples to record.
        key: the machine and the versions of the records.
        task: what was measured, for the records.
    """
    now = time.time()
    return [
        key.record(
            task, {"split_point": each.split_point, "batch_size": each.batch_size, "part": part.value}, costs, time=now
        )
        for each in samples
        for part, costs in each.parts.items()
    ]


def from_records(records: Iterable[Record], split_points: Sequence[SplitPoint]) -> list[PointSamples]:
    """Returns the samples of every batch size at which all split points are complete.

    Args:
        records: the records of one task, oldest first. Later measurements replace earlier ones.
        split_points: the model's split points, in order.
    """
    known_parts = {part.value: part for part in ProfilePart}
    parts_by_key: dict[PointKey, dict[ProfilePart, tuple[float, ...]]] = {}
    for record in records:
        size, name, part_name = (record.config.get(field) for field in ("batch_size", "split_point", "part"))
        part = known_parts.get(part_name) if isinstance(part_name, str) else None
        if record.error is None and isinstance(size, int) and isinstance(name, str) and part is not None:
            if part is ProfilePart.PREPROCESS:  # the first part of a measurement, which replaces the one before
                parts_by_key[size, name] = {}
            parts_by_key.setdefault((size, name), {})[part] = record.costs
    samples = {(size, name): PointSamples(name, size, parts) for (size, name), parts in parts_by_key.items()}

    def is_complete(size: int) -> bool:
        of_size = [samples.get((size, split_point.name)) for split_point in split_points]
        return all(each is not None and each.is_complete for each in of_size)

    return [
        samples[size, split_point.name]
        for size in sorted({size for size, _ in samples})
        if is_complete(size)
        for split_point in split_points
    ]
