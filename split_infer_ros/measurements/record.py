"""One measurement and its line in the database."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_MAPPINGS = ("target", "versions", "task", "config")
_FIELDS = (*_MAPPINGS, "costs", "error", "time")
_FACTS, _UNCERTAIN = "facts", "uncertain"
_DIGEST = "digest"
_FORMAT = "format"  # lines of format 1 leave it out
NEWEST_FORMAT = 1
YEAR_10000 = 253_402_300_800.0  # seconds since 1970; calendars end here


class RecordError(ValueError):
    """Raised for a line that is not a record, or that was changed after it was written."""


@dataclass(frozen=True)
class Record:
    """The cost of one configuration of one task on one machine. All values are plain JSON.

    Attributes:
        target: the machine: device, cpu, instruction set, cores, driver.
        versions: the number of the measurement's meaning, and the versions of the software: torch, cuda.
        task: what was measured: model, fingerprint, stage or operator, input shapes, precision.
        config: the measured configuration.
        costs: all samples, in seconds.
        error: why the configuration could not be measured; None if it was measured.
        time: when it was measured, in seconds since 1970.
        others: fields that this version of the package does not know. ``as_line`` writes them again.
        facts: other observations, for example ``uncertain`` and the ``difference`` of results.
    """

    target: Mapping[str, Any]
    versions: Mapping[str, Any]
    task: Mapping[str, Any]
    config: Mapping[str, Any]
    costs: tuple[float, ...]
    error: str | None = None
    time: float = 0.0
    others: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def uncertain(self) -> bool:
        """True if the medians of repeated measurements disagreed. Such a record is never the best."""
        return self.facts.get(_UNCERTAIN) is True

    @property
    def median_s(self) -> float:
        """The median of the samples in seconds; infinite if the measurement failed."""
        return math.inf if self.error is not None or not self.costs else statistics.median(self.costs)

    def as_line(self) -> str:
        """Returns the record as one line of JSON, with a digest that reveals later edits."""
        values = {name: getattr(self, name) for name in _FIELDS} | dict(self.others)
        if self.facts:
            values[_FACTS] = self.facts
        return _canonical(values | {_DIGEST: _digest(values)})

    @classmethod
    def from_line(cls, line: str) -> Record:
        """Reads a record from a line.

        Raises:
            RecordError: the line is broken, was edited, lacks a field, or has a later format.
        """
        try:
            values = json.loads(line, parse_constant=_refuse_constant, parse_int=_whole_number)
            digest = values.pop(_DIGEST, None) if isinstance(values, dict) else None
            right = _digest(values)  # raises for 1e999, which JSON reads as infinity
        except (ValueError, RecursionError) as error:
            raise RecordError(f"it is no JSON ({error})") from error
        if not isinstance(values, dict):
            raise RecordError(f"it holds a {type(values).__name__}, not a record")
        line_format = values.get(_FORMAT, NEWEST_FORMAT)
        if line_format != NEWEST_FORMAT:
            raise RecordError(f"it is of format {line_format!r}, of another version of the package; this one reads 1")
        missing = [name for name in _FIELDS if name not in values]
        if missing:
            raise RecordError(f"it lacks {', '.join(missing)}")
        if digest != right:
            raise RecordError("its digest does not fit: it was edited or damaged")
        if not all(isinstance(values[name], dict) for name in _MAPPINGS):
            raise RecordError(f"one of {', '.join(_MAPPINGS)} is no mapping")
        costs, failure, time = values["costs"], values["error"], values["time"]
        if not isinstance(costs, list) or not all(_is_number(cost) and cost >= 0 for cost in costs):
            raise RecordError(f"its costs are {costs!r}, not seconds")
        if not (failure is None or isinstance(failure, str)):
            raise RecordError(f"its error is {failure!r}, no text")
        if not _is_number(time) or not 0 <= time < YEAR_10000:
            raise RecordError(f"its time is {time!r}, not seconds since 1970")
        facts = values.get(_FACTS, {})
        if not isinstance(facts, dict):
            raise RecordError(f"its facts are a {type(facts).__name__}, no mapping")
        others = {name: value for name, value in values.items() if name not in (*_FIELDS, _FACTS)}
        target, versions, task, config = (values[name] for name in _MAPPINGS)
        return cls(
            target=target,
            versions=versions,
            task=task,
            config=config,
            costs=tuple(costs),
            error=failure,
            time=time,
            others=others,
            facts=facts,
        )


def kind_of(task: Mapping[str, Any]) -> str:
    """Returns the kind of a task: its operator or its stage, as text."""
    return str(task.get("operator", task.get("stage")))


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Returns whether two mappings give the same JSON, so that a tuple equals a list."""
    return _canonical(one) == _canonical(other)


def _canonical(values: Mapping[str, Any]) -> str:
    """Returns the values as JSON with sorted keys and no spaces, so equal values give equal texts.

    Raises:
        ValueError: a value is NaN or infinite.
    """
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False, default=dict)


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(values).encode()).hexdigest()[:16]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON's")


def _whole_number(text: str) -> int:
    """Reads a whole number. Refuses numbers beyond the range of a float, because statistics cannot use them."""
    number = int(text)
    if abs(number) > sys.float_info.max:
        raise ValueError(f"a whole number of {len(text)} digits is too large")
    return number


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
