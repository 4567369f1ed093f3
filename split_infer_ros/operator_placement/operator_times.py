"""Measured times of a model's operators on both processors. A plan can be made from them instead of from the list."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.operator_placement.plan import Operator, Rule, Tag


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """Samples of the times of one operator, in seconds.

    Attributes:
        cpu, gpu: times of the operator alone, with its inputs already on that processor.
        moved: times of the copies of the operator's inputs to the CPU and of its results back to the GPU.
    """

    cpu: tuple[float, ...]
    gpu: tuple[float, ...]
    moved: tuple[float, ...]


def rule_from_times(times: Mapping[str, OperatorTimes], fallback: Rule) -> Rule:
    """Returns a rule that moves an operator to the CPU if that saves more time than the copies take.

    The rule compares medians. It places all other measured operators on the GPU.

    Args:
        times: the operators' times, by name.
        fallback: the rule for operators that were not measured. If it returns ``ANY``, the new rule does so too, even
            for an operator that was measured.
    """

    def rule(operator: Operator) -> Tag | None:
        fallback_tag, samples = fallback(operator), times.get(operator.name)
        if samples is None or fallback_tag is Tag.ANY:
            return fallback_tag
        cpu_s, gpu_s, moved_s = (statistics.median(part) for part in (samples.cpu, samples.gpu, samples.moved))
        return Tag.CPU if cpu_s + moved_s < gpu_s else Tag.GPU

    return rule


def to_records(times: Mapping[str, OperatorTimes], key: Key, task: Mapping[str, Any]) -> list[Record]:
    """Returns the records that keep operators' times: one for each operator and each field of ``OperatorTimes``.

    Args:
        times: the operators' times, by name.
        key: the machine and its versions.
        task: the task of the records, which says what was measured.
    """
    now = time.time()
    return [
        key.record(task, {"operator": name, "part": field.name}, getattr(operator_times, field.name), time=now)
        for name, operator_times in times.items()
        for field in fields(operator_times)
    ]


def from_records(records: Iterable[Record]) -> dict[str, OperatorTimes]:
    """Returns the times of the operators for which the records have all fields of ``OperatorTimes``.

    Args:
        records: the records of one task, oldest first. Later measurements replace earlier ones.
    """
    parts: dict[str, dict[str, tuple[float, ...]]] = {}
    for record in records:
        name, part = record.config.get("operator"), record.config.get("part")
        if record.error is None and record.costs and isinstance(name, str) and isinstance(part, str):
            parts.setdefault(name, {})[part] = record.costs
    all_parts = {field.name for field in fields(OperatorTimes)}
    return {name: OperatorTimes(**found) for name, found in parts.items() if found.keys() == all_parts}
