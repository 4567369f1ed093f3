"""The record schema: what an imported record may hold, for each kind of task. ``tune import`` refuses other records."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from split_infer_ros.autotuning.spaces import (
    BATCH_SIZES,
    NETWORK,
    PIPELINE,
    SEGMENTS,
    SEGMENTS_PARTS,
    STAGES,
    network_space,
    thread_counts,
)
from split_infer_ros.buffers.policy import AUTO, POLICIES
from split_infer_ros.engines.execution_config import Convolutions
from split_infer_ros.engines.precision import Precision
from split_infer_ros.measurements.record import Record, kind_of
from split_infer_ros.memory_cost.calibration import sizes
from split_infer_ros.memory_cost.samples import Probe
from split_infer_ros.operator_placement.operator_times import OperatorTimes
from split_infer_ros.search.space import Space, Value
from split_infer_ros.split.profile_samples import ProfilePart
from split_infer_ros.vision_ops.implementations import ImplementationChoice
from split_infer_ros.vision_ops.schedules import SPACES

EXECUTION = "execution"  # batches of several models as one
OPERATORS = ("box_nms", "merged layer", "fused layers", *(template.value for template in SPACES))
SCHEDULES = {f"{template.value} schedule": space for template, space in SPACES.items()}
ALTERNATIVES = (*STAGES, *OPERATORS, *SCHEDULES)  # kinds of tasks whose configurations are alternatives
MAX_CORES, MAX_BATCH_SIZE = 1024, 256
NAME = re.compile(r"[\w.+-]{1,200}")  # a split point or a node of a graph


def objection_of(record: Record) -> str | None:
    """Says in a sentence why the schema does not allow a record; None if the schema allows the record.

    Whether the model has the record's split point is checked only when the record is used.
    """
    num_cores = record.target.get("cores")
    if not isinstance(num_cores, int) or isinstance(num_cores, bool) or not 1 <= num_cores <= MAX_CORES:
        return f"its target has {num_cores!r} cores; it takes 1 to {MAX_CORES}."
    kind, config = kind_of(record.task), dict(record.config)
    space, names = _space_of(kind, num_cores)
    if space is None:
        return f"it is of {kind!r}, which this version does not measure."
    for name in names:
        value = config.pop(name, None)
        if not isinstance(value, str) or not NAME.fullmatch(value):
            return f"'{name}' cannot be {value!r}; it takes a name."
    if kind == EXECUTION:
        batches = config.pop("batches", None)
        if not batches or not _is_list_of_pairs(batches, _is_batch):
            return f"'batches' cannot be {batches!r}; it takes pairs of a model and a number of images."
    if kind == NETWORK and not _is_list_of_pairs(config.pop("segments", []), _is_segment):
        segments = record.config["segments"]
        return f"'segments' cannot be {segments!r}; it takes pairs of a kind of convolutions and a split point."
    difference = record.facts.get("difference", 0.0)
    if isinstance(difference, bool) or not isinstance(difference, (int, float)):
        return f"its results differ by {difference!r}, which is no number."
    return space.objection(config)


def _space_of(kind: str, num_cores: int) -> tuple[Space | None, Sequence[str]]:
    """Returns the space of a kind of task, and the further knobs that take any name.

    The space of unknown kinds is None.
    """
    knobs: Mapping[str, Sequence[Value]]
    if kind == NETWORK:
        return network_space(num_cores, tuple(Precision)), ()
    if kind == SEGMENTS:
        knobs = {**network_space(num_cores, tuple(Precision)).knobs, "part": SEGMENTS_PARTS}
        return Space(knobs), ("segment",)
    if kind == PIPELINE:
        knobs = {
            "batch_size": BATCH_SIZES,
            "backbone_threads": thread_counts(num_cores),
            "head_threads": thread_counts(num_cores),
            "cuda_graphs": (True, False),
            "memory_policy": (AUTO, *(policy.value for policy in POLICIES)),
        }
        return Space(knobs), ("split_point",)
    if kind == "split_points":
        parts = tuple(part.value for part in ProfilePart)
        return Space({"batch_size": range(1, MAX_BATCH_SIZE + 1), "part": parts}), ("split_point",)
    if kind == "operators":
        return Space({"part": [part.name for part in fields(OperatorTimes)]}), ("operator",)
    if kind == EXECUTION:
        return Space({}), ()
    if kind == "memory_cost":
        num_bytes = sorted({size for probe in Probe for size in sizes(probe)})
        return Space({"probe": [probe.value for probe in Probe], "bytes": num_bytes}), ()
    if kind in OPERATORS:
        return Space({"form": (ImplementationChoice.PLAIN.value, ImplementationChoice.TRITON.value)}), ()
    if kind in SCHEDULES:
        return SCHEDULES[kind], ()
    return None, ()


def _is_list_of_pairs(value: object, is_pair: Callable[[Any, Any], bool]) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, list) and len(each) == 2 and is_pair(*each) for each in value
    )


def _is_batch(model: object, count: object) -> bool:
    return isinstance(model, str) and isinstance(count, int) and 1 <= count <= MAX_BATCH_SIZE


def _is_segment(kind: object, end: object) -> bool:
    return kind in [each.value for each in Convolutions] and isinstance(end, str) and bool(NAME.fullmatch(end))
