"""The measured costs of executions in one execution mode. The database keeps them under descriptions of the models."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from split_infer_ros.images.pixel_input import PixelInput
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.runtime.num_threads import max_threads
from split_infer_ros.server.costs.cost_keys import CostKey, cost_key_of, engine_text_of
from split_infer_ros.server.costs.execution_timing import (
    PixelModel,
    TimedModel,
    fusable_combinations,
    samples_agree,
)
from split_infer_ros.server.schedule.execution_costs import (
    NOISE_MARGIN,
    Combination,
    ExecutionCosts,
    StackCosts,
    combination_of,
)
from split_infer_ros.server.schedule.graph_sizes import padded_size
from split_infer_ros.split.model import SplitModel

if TYPE_CHECKING:
    from split_infer_ros.split.stacked_model import StackedModel

MAX_EXECUTION_S = 0.25  # longer executions are not measured, because their costs grow in proportion
MAX_FUSED = 128  # the most combinations of several models that are considered, the fewest models first
FUSION_BUDGET_S = 2.0  # the time for measuring combinations of several models, each time that a model is added


class CostTable:
    """The costs of the loaded models in one execution mode.

    Args:
        key: the device and the versions under which costs are kept.
        database: keeps costs. They are loaded from it.
        max_batch_size: the largest batch that is measured; may be replaced.
        graphs: whether executions are recorded as graphs.
        num_lanes: 0 if an execution has all cores, or the GPU. Otherwise each execution has one core, ``num_lanes``
            executions run concurrently, and models are not fused.
    """

    def __init__(self, key: Key, database: Database, *, max_batch_size: int, graphs: bool, num_lanes: int = 0) -> None:
        self.max_batch_size = max_batch_size
        self._key = key
        self._database = database
        self._graphs = graphs
        self._num_lanes = num_lanes
        self._models: dict[str, SplitModel] = {}
        self._stacks: dict[str, StackedModel] = {}
        self._variants: dict[str, str] = {}
        self._timed: dict[str, TimedModel] = {}
        self._measured_s: dict[CostKey, float] = {}
        self._failed: set[Combination] = set()
        self._fusion_budget_s = 0.0

    @property
    def models(self) -> Mapping[str, TimedModel]:
        """The models and the stacks that were added, by name."""
        return {**self._timed, **self._stacks}

    def load_costs(self) -> None:
        """Takes costs from the database. Other threads may use the table meanwhile.

        If the samples of a cost disagree, the machine was busy. Such a cost is not taken, so it is measured again.
        """
        for record in self._database.find(self._key, self._task()):
            cost_key = cost_key_of(record)
            if cost_key and 0 < record.median_s < math.inf and samples_agree(record.costs):
                self._measured_s[cost_key] = record.median_s

    def add_model(self, name: str, model: SplitModel, variant: str, pixels: PixelInput | None = None) -> None:
        """Adds a model. Its costs also depend on its engine and precision.

        Args:
            name: a name that is unique in this table.
            model: the model.
            variant: what the costs depend on besides the model; see ``Plan.cost_key``.
            pixels: the form of the images, if the backbone normalises them.
        """
        self._models[name], self._variants[name] = model, variant + engine_text_of(model)
        self._timed[name] = model if pixels is None else PixelModel(model.image_shape[1:], pixels)
        self._fusion_budget_s = 0.0 if self._num_lanes else FUSION_BUDGET_S

    def remove_model(self, name: str) -> None:
        """Removes a model and its failures. Its costs stay for a later ``add_model``."""
        del self._models[name], self._variants[name], self._timed[name]
        self._failed = {combination for combination in self._failed if name not in dict(combination)}

    def set_stacks(self, stacks: Sequence[StackedModel]) -> None:
        """Replaces the stacks by exactly these. Their members must have been added."""
        gone = self._stacks.keys() - {stack.name for stack in stacks}
        self._failed = {combination for combination in self._failed if not gone & dict(combination).keys()}
        self._stacks = {stack.name: stack for stack in stacks}

    def stack_pays(self, members: Sequence[str]) -> bool | None:
        """Returns whether these models cost clearly less as one network than one after the other, at some batch size.

        Returns None while this is not known and measurements are missing.

        Args:
            members: names of added models of one architecture.
        """
        name, is_known = " + ".join(members), self._find_s({members[0]: 1}) is not None
        for size in self._stack_sizes(members):
            seconds = self._stacked_s(members, size)
            if seconds is None:
                is_known = is_known and combination_of({name: size}) in self._failed
            elif (1 + NOISE_MARGIN) * seconds <= len(members) * (self._find_s({members[0]: size}) or math.inf):
                return True
        return False if is_known else None

    def is_stack(self, combination: Combination) -> bool:
        """Returns whether a combination is an execution of a stack."""
        return combination[0][0] in self._stacks

    def is_ready(self, name: str) -> bool:
        """Returns whether the model was added and all its batches are measured."""
        return name in self._models and next(self._batches_to_measure(name), None) is None

    def has_failed(self, name: str) -> bool:
        """Returns whether the model could not run even a single image."""
        return combination_of({name: 1}) in self._failed

    def next_to_measure(self) -> Combination | None:
        """Returns the next combination to measure, batches of one model first, stacks last; None if enough is known."""
        for name in self._models:
            for batch in self._batches_to_measure(name):
                return batch
        if self._fusion_budget_s > 0:
            costs = self.costs()
            for combination in _fusable(costs):
                if self._is_to_measure(combination, costs):
                    return combination
        for name, stack in self._stacks.items():
            for size in self._stack_sizes(list(stack.members)):
                batch = combination_of({name: size})
                if batch not in self._failed and self._stacked_s(list(stack.members), size) is None:
                    return batch
        return None

    def add_measured(self, combination: Combination, samples_s: Sequence[float]) -> None:
        """Adds the median of the samples as the cost of an execution, and keeps the samples in the database."""
        if len(combination) > 1:
            self._fusion_budget_s -= sum(samples_s)
        cost_key = self._cost_key(combination)
        self._measured_s[cost_key] = statistics.median(samples_s)
        task = self._task()
        record = self._key.record(task, {"batches": cost_key}, tuple(samples_s), time=time.time())
        self._database.keep([record], "the cost of an execution is")

    def add_failed(self, combination: Combination) -> None:
        """Notes that an execution cannot run. It is not measured again."""
        self._failed.add(combination)

    def costs(self) -> ExecutionCosts:
        """Returns the costs of all models with at least one measured batch."""
        alone_s: dict[str, dict[int, float]] = {}
        for name in self._models:
            batches_s = {size: self._find_s({name: size}) for size in self._batch_sizes()}
            measured_s = {size: seconds for size, seconds in batches_s.items() if seconds is not None}
            if measured_s:
                alone_s[name] = measured_s
        stacks = {}
        for name, stack in self._stacks.items():
            members = list(stack.members)
            sizes = {size: self._stacked_s(members, size) for size in self._stack_sizes(members)}
            measured_s = {size: seconds for size, seconds in sizes.items() if seconds is not None}
            if measured_s and alone_s.keys() >= stack.members.keys():
                stacks[name] = StackCosts(tuple(members), measured_s)
        costs = ExecutionCosts(
            {name: self._models[name].network.num_parameters() for name in alone_s},
            alone_s,
            stacks=stacks,
            pads=self._graphs,
        )
        fused_s = {}
        for combination in _fusable(costs):
            seconds = self._find_s(dict(combination))
            if seconds is not None:
                fused_s[combination] = seconds
        return replace(costs, fused_s=fused_s)

    def _batches_to_measure(self, name: str) -> Iterator[Combination]:
        """Yields the model's smallest batch size without a cost, if that batch is expected to be short."""
        expected_s = 0.0
        for size in self._batch_sizes():
            batch = combination_of({name: size})
            if batch in self._failed or expected_s > MAX_EXECUTION_S:
                return
            seconds = self._find_s({name: size})
            if seconds is None:
                yield batch
                return
            expected_s = 2 * seconds

    def _is_to_measure(self, combination: Combination, costs: ExecutionCosts) -> bool:
        if combination in self._failed or self._find_s(dict(combination)) is not None:
            return False
        return sum(costs.batch_s(name, count) for name, count in combination) <= MAX_EXECUTION_S

    def _stack_sizes(self, members: Sequence[str]) -> Iterator[int]:
        """Yields the numbers of images of each member that are measured, up to the most that one decision may need.

        Long executions are left out. All members have the same architecture, so the costs of the first decide.
        """
        for size in range(1, math.ceil(self.max_batch_size / len(members)) + 1):
            alone_s = self._find_s({members[0]: size})
            if alone_s is not None and len(members) * alone_s <= MAX_EXECUTION_S:
                yield size

    def _batch_sizes(self) -> list[int]:
        if self._graphs:
            return sorted({padded_size(count) for count in range(1, self.max_batch_size + 1)})
        sizes = [1]
        while sizes[-1] < self.max_batch_size:
            sizes.append(min(2 * sizes[-1], self.max_batch_size))
        return sizes

    def _find_s(self, counts: Mapping[str, int]) -> float | None:
        return self._measured_s.get(self._cost_key(combination_of(counts)))

    def _stacked_s(self, members: Sequence[str], size: int) -> float | None:
        return self._measured_s.get(((self._stack_kind(members), size),))

    def _cost_key(self, combination: Combination) -> CostKey:
        return tuple(sorted((self._kind_of(name), count) for name, count in combination))

    def _kind_of(self, name: str) -> str:
        """Returns a description of a model or a stack that does not depend on its name."""
        if name in self._stacks:
            return self._stack_kind(list(self._stacks[name].members))
        return f"{self._models[name].network.fingerprint} at {self._variants[name]}"

    def _stack_kind(self, members: Sequence[str]) -> str:
        return f"{len(members)} as one network: {self._kind_of(members[0])}"

    def _task(self) -> dict[str, Any]:
        """Returns the task of the records. It is the same for all models. ``config`` names models and batch sizes."""
        threads = {"threads": 1, "lanes": self._num_lanes} if self._num_lanes else {"threads": max_threads()}
        return {"stage": "execution", **threads, "graphs": self._graphs}


def _fusable(costs: ExecutionCosts) -> Iterable[Combination]:
    return itertools.islice(fusable_combinations(costs.parameters), MAX_FUSED)
