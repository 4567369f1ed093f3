"""What executions cost on this machine, as far as it was measured: kept for good, under what the models are."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.runtime.num_threads import max_threads
from split_infer_ros.serving.execution_costs import ExecutionCosts, Group, group
from split_infer_ros.serving.execution_timing import agree, fusable
from split_infer_ros.split.model import SplitModel

LONGEST_S = 0.25  # an execution that would take longer is not tried: beyond, costs are in proportion anyway
MOST_FUSED = 128  # combinations of models, those of the fewest first
FUSED_S = 2.0  # spent on several models as one, whenever models came

_Kind = tuple[tuple[str, int], ...]  # as Group, by what the models are


class CostTable:
    """Costs of the models that are open, by the names under which they are.

    Args:
        key: of the device.
        database: from which costs are taken, and in which they are kept.
        most: the largest batch that is measured; may be replaced.
        graphs: whether executions are recorded.
        lanes: 0: executions have all cores, or the GPU; else each has one core, so many of them side by side. Then no
            several models are one execution.
    """

    def __init__(self, key: Key, database: Database, most: int, graphs: bool, lanes: int = 0) -> None:
        self.most = most
        self._key = key
        self._database = database
        self._graphs = graphs
        self._lanes = lanes
        self._models: dict[str, SplitModel] = {}
        self._forms: dict[str, str] = {}
        self._known_s: dict[_Kind, float] = {}
        self._failed: set[Group] = set()
        self._left_s = 0.0

    @property
    def models(self) -> Mapping[str, SplitModel]:
        """Those that are open."""
        return self._models

    def recall(self, model: SplitModel) -> None:
        """Take over what the database has, for such models; may be called beside all else.

        What samples disagreed about (a busy machine) served as long as that pipeline ran, and is measured anew.
        """
        for record in self._database.find(self._key, self._task(model)):
            kind = _kind_of(record)
            if kind and 0 < record.median_s < math.inf and agree(record.costs):
                self._known_s[kind] = record.median_s

    def open(self, name: str, model: SplitModel, form: str) -> None:
        """A model comes, to be run in that form: up to which split point, with which weights."""
        self._models[name], self._forms[name] = model, form
        self._left_s = 0.0 if self._lanes else FUSED_S

    def close(self, name: str) -> None:
        """A model goes; what is known of it stays."""
        del self._models[name], self._forms[name]
        self._failed = {combination for combination in self._failed if name not in dict(combination)}

    def is_ready(self, name: str) -> bool:
        """True once the model's batches were measured."""
        return name in self._models and next(self._batches_to_measure(name), None) is None

    def failed(self, name: str) -> bool:
        """True if the model could not run even a single image."""
        return group({name: 1}) in self._failed

    def to_measure(self) -> Group | None:
        """What is to be measured next: batches of one model first; None if enough is known."""
        for name in self._models:
            for combination in self._batches_to_measure(name):
                return combination
        if self._left_s <= 0:
            return None
        costs = self.costs()
        return next((found for found in _fusable(costs) if self._is_open(found, costs)), None)

    def note(self, combination: Group, samples_s: Sequence[float]) -> None:
        """It was measured."""
        if len(combination) > 1:
            self._left_s -= sum(samples_s)
        kind = self._kind(combination)
        self._known_s[kind] = statistics.median(samples_s)
        task, batches = self._task(self._models[combination[0][0]]), {"batches": kind}
        versions = self._key.versions_for(task)
        record = Record(self._key.target, versions, task, batches, tuple(samples_s), time=time.time())
        self._database.keep([record], "the cost of an execution is")

    def note_failed(self, combination: Group) -> None:
        """It cannot run, and is not tried again."""
        self._failed.add(combination)

    def costs(self) -> ExecutionCosts:
        """Of the models of which anything is known."""
        alone = {
            name: known
            for name in self._models
            if (known := {size: cost for size in self._sizes() if (cost := self._find({name: size})) is not None})
        }
        costs = ExecutionCosts({name: self._models[name].parameters for name in alone}, alone)
        fused = {found: cost for found in _fusable(costs) if (cost := self._find(dict(found))) is not None}
        return replace(costs, fused_s=fused)

    def _batches_to_measure(self, name: str) -> Iterator[Group]:
        """Sizes in ascending order, as far as they are expected to be short."""
        expected = 0.0
        for size in self._sizes():
            batch = group({name: size})
            if batch in self._failed or expected > LONGEST_S:
                return
            found = self._find({name: size})
            if found is None:
                yield batch
                return
            expected = 2 * found

    def _is_open(self, combination: Group, costs: ExecutionCosts) -> bool:
        unknown = combination not in self._failed and self._find(dict(combination)) is None
        return unknown and sum(costs.batch_s(name, count) for name, count in combination) <= LONGEST_S

    def _sizes(self) -> list[int]:
        sizes = [1]
        while sizes[-1] < self.most:
            sizes.append(min(2 * sizes[-1], self.most))
        return sizes

    def _find(self, counts: Mapping[str, int]) -> float | None:
        return self._known_s.get(self._kind(group(counts)))

    def _kind(self, combination: Group) -> _Kind:
        return tuple(
            sorted((f"{self._models[name].fingerprint} at {self._forms[name]}", count) for name, count in combination)
        )

    def _task(self, model: SplitModel) -> dict[str, Any]:
        """The same for all models of a device: which of them, and how many images of each, is in ``config``."""
        cores = {"threads": 1, "lanes": self._lanes} if self._lanes else {"threads": max_threads()}
        precision = str(model.dtype).removeprefix("torch.")
        return {"stage": "execution", "precision": precision, **cores, "graphs": self._graphs}


def _fusable(costs: ExecutionCosts) -> Iterable[Group]:
    return itertools.islice(fusable(costs.parameters), MOST_FUSED)


def _kind_of(record: Record) -> _Kind:
    """Nothing where the record is of another form."""
    try:
        return tuple((str(kind), int(count)) for kind, count in record.config["batches"])
    except (KeyError, TypeError, ValueError):
        return ()
