"""All that records may say, by kind of task: what an imported one holds is data, and only such data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields

from split_infer_ros.autotuning.spaces import (
    BATCH_SIZES,
    NETWORK,
    PIPELINE,
    SEGMENTS,
    SEGMENTS_PARTS,
    STAGES,
    fewer,
    network_space,
)
from split_infer_ros.buffers.policy import AUTO, POLICIES
from split_infer_ros.engines.execution_config import Convolutions
from split_infer_ros.measurements.record import Record, kind_of
from split_infer_ros.memory_cost.calibration import sizes
from split_infer_ros.memory_cost.samples import Probe
from split_infer_ros.operator_placement.operator_times import OperatorTimes
from split_infer_ros.search.space import Space, Value
from split_infer_ros.split.model import PRECISIONS
from split_infer_ros.split.profile_samples import ProfilePart
from split_infer_ros.vision_ops.implementations import ImplementationChoice
from split_infer_ros.vision_ops.schedules import SPACES

EXECUTION = "execution"  # of several models' batches as one
OPERATORS = ("box_nms", "prefix_sum", "segmented_argsort", *(template.value for template in SPACES))
SCHEDULES = {f"{template.value} schedule": space for template, space in SPACES.items()}
ALTERNATIVES = (*STAGES, *OPERATORS, *SCHEDULES)  # kinds whose configurations are ways to do the same, one of them best
MOST_CORES, MOST_BATCH = 1024, 256
NAME = re.compile(r"[\w.+-]{1,200}")  # of a split point or a node of a graph


def objection_of(record: Record) -> str | None:
    """Why a record lies outside what is declared, in a sentence; None if it does not.

    Whether the model has a split point of that name is seen only when the record is used.
    """
    cores = record.target.get("cores")
    if not isinstance(cores, int) or isinstance(cores, bool) or not 1 <= cores <= MOST_CORES:
        return f"its target has {cores!r} cores; it takes 1 to {MOST_CORES}."
    kind, config = kind_of(record.task), dict(record.config)
    space, names = _declared(kind, cores)
    if space is None:
        return f"it is of {kind!r}, which this version does not measure."
    for name in names:
        value = config.pop(name, None)
        if not isinstance(value, str) or not NAME.fullmatch(value):
            return f"'{name}' cannot be {value!r}; it takes a name."
    if kind == EXECUTION:
        batches = config.pop("batches", None)
        if not _are_batches(batches):
            return f"'batches' cannot be {batches!r}; it takes pairs of a model and a number of images."
    if kind == NETWORK and not _are_segments(config.pop("segments", [])):
        return f"'segments' cannot be {record.config['segments']!r}; it takes pairs of a form and a split point."
    differs = record.facts.get("difference", 0.0)
    if isinstance(differs, bool) or not isinstance(differs, (int, float)):
        return f"its results differ by {differs!r}, which is no number."
    return space.objection(config)


def _declared(kind: str, cores: int) -> tuple[Space | None, Sequence[str]]:
    """The knobs of a kind of task, and the names of those that take any name."""
    knobs: Mapping[str, Sequence[Value]]
    if kind == NETWORK:
        return network_space(cores, tuple(PRECISIONS)), ()
    if kind == SEGMENTS:
        knobs = {**network_space(cores, tuple(PRECISIONS)).knobs, "part": SEGMENTS_PARTS}
        return Space(knobs), ("segment",)
    if kind == PIPELINE:
        knobs = {
            "batch_size": BATCH_SIZES,
            "backbone_threads": fewer(cores),
            "head_threads": fewer(cores),
            "cuda_graphs": (True, False),
            "memory_policy": (AUTO, *(policy.value for policy in POLICIES)),
        }
        return Space(knobs), ("split_point",)
    if kind == "split_points":
        parts = tuple(part.value for part in ProfilePart)
        return Space({"batch_size": range(1, MOST_BATCH + 1), "part": parts}), ("split_point",)
    if kind == "operators":
        return Space({"part": [part.name for part in fields(OperatorTimes)]}), ("operator",)
    if kind == EXECUTION:
        return Space({}), ()
    if kind == "memory_cost":
        every = sorted({size for probe in Probe for size in sizes(probe)})
        return Space({"probe": [probe.value for probe in Probe], "bytes": every}), ()
    if kind in OPERATORS:
        return Space({"form": (ImplementationChoice.PLAIN.value, ImplementationChoice.TRITON.value)}), ()
    if kind in SCHEDULES:
        return SCHEDULES[kind], ()
    return None, ()


def _are_batches(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(
            isinstance(each, list)
            and len(each) == 2
            and isinstance(each[0], str)
            and isinstance(each[1], int)
            and 1 <= each[1] <= MOST_BATCH
            for each in value
        )
    )


def _are_segments(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, list)
        and len(each) == 2
        and each[0] in [kind.value for kind in Convolutions]
        and isinstance(each[1], str)
        and NAME.fullmatch(each[1])
        for each in value
    )
