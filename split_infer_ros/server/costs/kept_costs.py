"""Keeps the measured costs of executions in the database. A cost is found by descriptions of its models."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any

from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.runtime.num_threads import max_threads

# How far the median may lie above the fastest sample: a share of it, plus seconds. Beyond, the machine was busy.
MAX_SPREAD, MAX_SPREAD_S = 0.15, 2e-4

CostKey = tuple[tuple[str, int], ...]  # like a Combination, but with a description of each model in place of its name


class KeptCosts:
    """The measured costs of executions: the seconds of an execution, by execution mode and cost key.

    The number of lanes stands for an execution mode; see ``CostTable``.

    Args:
        key: the device and the versions that the costs belong to.
        database: keeps the costs. ``load`` takes costs from it.
        graphs: whether executions are recorded as graphs.
    """

    def __init__(self, key: Key, database: Database, *, graphs: bool) -> None:
        self._key = key
        self._database = database
        self._graphs = graphs
        self._measured_s: dict[tuple[int, CostKey], float] = {}
        self._unsaved: list[Record] = []

    def load(self, modes: Iterable[int]) -> None:
        """Takes the costs of these modes from the database. Other threads may use this object meanwhile.

        If the samples of a cost disagree, the machine was busy. Such a cost is left out, so it is measured again.

        Args:
            modes: the number of lanes of each mode.
        """
        for num_lanes in modes:
            for record in self._database.find(self._key, self._task(num_lanes)):
                cost_key = _cost_key_of(record)
                if cost_key and 0 < record.median_s < math.inf and samples_agree(record.costs):
                    self._measured_s[num_lanes, cost_key] = record.median_s

    def find_s(self, num_lanes: int, cost_key: CostKey) -> float | None:
        """Returns the cost of an execution in seconds; None if the cost is not known."""
        return self._measured_s.get((num_lanes, cost_key))

    def add(self, num_lanes: int, cost_key: CostKey, samples_s: Sequence[float]) -> None:
        """Takes the median of the samples as the cost of an execution. ``save`` writes the samples to the database."""
        self._measured_s[num_lanes, cost_key] = statistics.median(samples_s)
        record = self._key.record(self._task(num_lanes), {"batches": cost_key}, tuple(samples_s), time=time.time())
        self._unsaved.append(record)

    def save(self) -> None:
        """Writes the samples that were added to the database. It waits for the disk, and for other processes.

        Only the thread that adds costs may call this.
        """
        records, self._unsaved = self._unsaved, []
        if records:
            self._database.keep(records, "the cost of an execution is")

    def _task(self, num_lanes: int) -> dict[str, Any]:
        """Returns the task of the records of a mode, the same for all models. ``config`` holds the cost key."""
        threads = {"threads": 1, "lanes": num_lanes} if num_lanes else {"threads": max_threads()}
        return {"stage": "execution", **threads, "graphs": self._graphs}


def samples_agree(samples_s: Sequence[float]) -> bool:
    """Returns whether half of the samples are about as fast as the fastest sample. If not, the machine was busy.

    Args:
        samples_s: at least one sample, in seconds.
    """
    return statistics.median(samples_s) <= (1 + MAX_SPREAD) * min(samples_s) + MAX_SPREAD_S


def _cost_key_of(record: Record) -> CostKey:
    """Returns the cost key of a record; empty if the record's config has another format."""
    try:
        return tuple((str(model), int(count)) for model, count in record.config["batches"])
    except (KeyError, TypeError, ValueError):
        return ()
