"""What executions of the loaded models cost in each execution mode, and what is still to be measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from split_infer_ros.images.pixel_input import PixelInput
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.server.costs.kept_costs import CostKey, KeptCosts
from split_infer_ros.server.costs.table_model import BlankImages, TableModel
from split_infer_ros.server.schedule.execution_costs import (
    NOISE_MARGIN,
    Combination,
    ExecutionCosts,
    StackCosts,
    combination_of,
    fusable_combinations,
)
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.graph_sizes import measured_sizes
from split_infer_ros.split.model import SplitModel

if TYPE_CHECKING:
    from split_infer_ros.split.stacked_model import StackedModel

Failure = tuple[int, Combination, CostKey]  # the mode, and what could not run in it

MAX_EXECUTION_S = 0.25  # longer executions are not measured, because their costs grow in proportion
MIN_SAVING = 0.1  # without graphs, larger batches are measured only if two images save this share: an engine compiles
MAX_FUSED = 128  # the most combinations of several models that are considered, the fewest models first
FUSION_BUDGET_S = 2.0  # the time for measuring combinations of several models, for each new plan of a model


class CostTable:
    """The costs of executions of the loaded models, in seconds, in every execution mode.

    An execution mode is named by its number of lanes. In mode 0, an execution has all cores, or the GPU. In the other
    mode, each execution has a lane of one core. Executions then run concurrently, and models are not fused. Only models
    that can use lanes have costs there.

    Args:
        key: the device and the software versions to which the costs belong.
        database: keeps costs. ``load_costs`` reads them.
        max_batch_size: the largest batch that is measured; may be replaced.
        graphs: whether executions are recorded as CUDA graphs.
        num_lanes: the number of lanes, one a core; 0 if all cores, or the GPU, are the only execution mode.
    """

    def __init__(self, key: Key, database: Database, *, max_batch_size: int, graphs: bool, num_lanes: int = 0) -> None:
        self.max_batch_size = max_batch_size
        self._graphs = graphs
        self._modes: tuple[int, ...] = (0, num_lanes) if num_lanes else (0,)
        self._kept = KeptCosts(key, database, graphs=graphs)
        self._models: dict[str, TableModel] = {}
        self._stacks: dict[str, StackedModel] = {}
        self._failed: dict[Failure, bool] = {}  # whether it may work by now
        self._kinds: dict[str, set[str]] = {}  # the kinds that each model has had
        self._fusion_budget_s = 0.0

    @property
    def blank_images(self) -> Mapping[str, BlankImages]:
        """A function for each model and each stack, by name. Given a batch size, it returns black images."""
        images_of = {name: model.blank_images for name, model in self._models.items()}
        return {**images_of, **{name: stack.blank_images for name, stack in self._stacks.items()}}

    def load_costs(self) -> None:
        """Reads the costs that earlier runs kept in the database. Other threads may use the table meanwhile."""
        self._kept.load(self._modes)

    def add_model(
        self, name: str, model: SplitModel, variant: str, pixels: PixelInput | None = None, *, has_lanes: bool = True
    ) -> None:
        """Adds a model, or replaces one that has a new plan. Its costs also depend on its engine and precision.

        Args:
            name: a name that is unique in this table.
            model: the model.
            variant: what the costs depend on besides the model; see ``Plan.cost_key``.
            pixels: the form of the images if the backbone normalises them itself; None if it takes normalised images.
            has_lanes: whether the model can be computed on lanes. If not, its costs on lanes are not measured.
        """
        added = self._models[name] = TableModel.of(model, variant, pixels, has_lanes=has_lanes)
        if added.kind not in self._kinds.setdefault(name, set()):
            self._kinds[name].add(added.kind)
            self._fusion_budget_s = FUSION_BUDGET_S
        if not has_lanes:
            self._forget_failures({name}, self._modes[1:])

    def remove_model(self, name: str) -> None:
        """Removes a model, and forgets which of its executions failed. Its costs stay for a later ``add_model``."""
        del self._models[name], self._kinds[name]
        self._forget_failures({name}, self._modes)

    def set_stacks(self, stacks: Sequence[StackedModel]) -> None:
        """Replaces all stacks by the given ones. Their members must have been added with ``add_model``."""
        self._forget_failures(self._stacks.keys() - {stack.name for stack in stacks}, self._modes)
        self._stacks = {stack.name: stack for stack in stacks}

    def stack_pays(self, members: Sequence[str]) -> bool | None:
        """Returns whether these models cost clearly less as one network than one after the other.

        One batch size in one execution mode is enough. Returns None while no measurement has shown it, and some
        measurements are missing.

        Args:
            members: names of added models of one architecture.
        """
        verdicts = [self._stack_pays(mode, members) for mode in self._modes if self._has(mode, members)]
        if True in verdicts:
            return True
        return None if None in verdicts else False

    def is_stack(self, combination: Combination) -> bool:
        """Returns whether a combination is an execution of a stack, and not of single models."""
        return combination[0][0] in self._stacks

    def has_failed(self, name: str) -> bool:
        """Returns whether the model could not run even a single image in one of the execution modes."""
        single = combination_of({name: 1})
        return any(self._failed.get(self._failure(mode, single)) is False for mode in self._modes)

    def next_to_measure(self, mode: int = 0) -> Combination | None:
        """Returns the next combination to measure in an execution mode; None if enough is known.

        Batches of one model come first, stacks last.
        """
        return next(self._to_measure(mode), None)

    def merged_batches(self, mode: int) -> Iterator[Combination]:
        """Yields the batches of several images that were measured, of models for which merging clearly pays."""
        for name in self._names(mode):
            sizes = self._measured_s(mode, name, measured_sizes(self.max_batch_size, graphs=self._graphs))
            if sizes.keys() >= {1, 2} and self._merging_pays(sizes[1], sizes[2]):
                yield from (combination_of({name: size}) for size in sizes if size > 1)

    def add_measured(self, combination: Combination, samples_s: Sequence[float], mode: int = 0) -> None:
        """Adds the median of the samples as the cost of an execution. ``save_costs`` keeps the samples."""
        if len(combination) > 1:
            self._fusion_budget_s -= sum(samples_s)
        self._kept.add(mode, self._cost_key(combination), samples_s)

    def save_costs(self) -> None:
        """Writes the samples that were added to the database; see ``KeptCosts.save``. Callers hold no lock."""
        self._kept.save()

    def add_failed(self, combination: Combination, mode: int = 0, *, is_passing: bool = False) -> None:
        """Notes that an execution cannot run. It is not measured again, unless a model gets another plan.

        Args:
            combination: the execution.
            mode: the execution mode.
            is_passing: whether it may work a moment later. Its models then serve without this cost.
        """
        self._failed[self._failure(mode, combination)] = is_passing

    def costs(self) -> ExecutionModes:
        """Returns the costs of all models with at least one measured batch, in every execution mode."""
        whole, *lanes = (self.costs_in(mode) for mode in self._modes)
        return ExecutionModes(whole, self._modes[-1], *lanes)

    def costs_in(self, mode: int) -> ExecutionCosts:
        """Returns the costs in one execution mode of all models with at least one measured batch."""
        sizes = measured_sizes(self.max_batch_size, graphs=self._graphs)
        alone_s = {name: found for name in self._names(mode) if (found := self._measured_s(mode, name, sizes))}
        stacks = {}
        for name, members in self._members(mode).items():
            measured_s = self._measured_s(mode, name, self._stack_sizes(mode, members))
            if measured_s and alone_s.keys() >= set(members):
                stacks[name] = StackCosts(tuple(members), measured_s)
        parameters = {name: self._models[name].parameters for name in alone_s}
        costs = ExecutionCosts(parameters, alone_s, stacks=stacks, pads=self._graphs)
        found_s = {combination: self._find_s(mode, dict(combination)) for combination in _fusable(costs)}
        return replace(costs, fused_s={each: seconds for each, seconds in found_s.items() if seconds is not None})

    def _names(self, mode: int) -> list[str]:
        """Returns the names of the models that can be computed in an execution mode."""
        return [name for name, model in self._models.items() if model.has_lanes or not mode]

    def _has(self, mode: int, members: Sequence[str]) -> bool:
        return set(members) <= set(self._names(mode))

    def _members(self, mode: int) -> dict[str, list[str]]:
        """Returns the stacks that can be computed in an execution mode, with the names of their models."""
        members = {name: list(stack.members) for name, stack in self._stacks.items()}
        return {name: own for name, own in members.items() if self._has(mode, own)}

    def _has_failed(self, mode: int, combination: Combination) -> bool:
        return self._failure(mode, combination) in self._failed

    def _failure(self, mode: int, combination: Combination) -> Failure:
        return mode, combination, self._cost_key(combination)

    def _forget_failures(self, names: set[str], modes: Sequence[int]) -> None:
        kept = [each for each in self._failed if each[0] not in modes or not names & dict(each[1]).keys()]
        self._failed = {each: self._failed[each] for each in kept}

    def _stack_pays(self, mode: int, members: Sequence[str]) -> bool | None:
        name, is_known = " + ".join(members), self._find_s(mode, {members[0]: 1}) is not None
        for size in self._stack_sizes(mode, members):
            key = ((self._stack_kind(members), size),)
            seconds = self._kept.find_s(mode, key)
            if seconds is None:
                is_known = is_known and (mode, combination_of({name: size}), key) in self._failed
            elif (1 + NOISE_MARGIN) * seconds <= len(members) * (self._find_s(mode, {members[0]: size}) or math.inf):
                return True
        return False if is_known else None

    def _to_measure(self, mode: int) -> Iterator[Combination]:
        for name in self._names(mode):
            yield from self._batches_to_measure(mode, name)
        if not mode and self._fusion_budget_s > 0:
            costs = self.costs_in(mode)
            for fused in _fusable(costs):
                if self._is_missing(mode, fused) and sum(costs.batch_s(*each) for each in fused) <= MAX_EXECUTION_S:
                    yield fused
        for name, members in self._members(mode).items():
            for size in self._stack_sizes(mode, members):
                if self._is_missing(mode, batch := combination_of({name: size})):
                    yield batch

    def _batches_to_measure(self, mode: int, name: str) -> Iterator[Combination]:
        """Yields the model's smallest batch size without a cost, if that batch is expected to be short, and may pay."""
        expected_s = 0.0  # twice the seconds of half as many images
        for size in measured_sizes(self.max_batch_size, graphs=self._graphs):
            batch = combination_of({name: size})
            if self._has_failed(mode, batch) or expected_s > MAX_EXECUTION_S:
                return
            seconds = self._find_s(mode, {name: size})
            if seconds is None:
                yield batch
                return
            if size == 2 and not self._merging_pays(expected_s / 2, seconds):
                return
            expected_s = 2 * seconds

    def _merging_pays(self, single_s: float, pair_s: float) -> bool:
        return self._graphs or pair_s <= (1 - MIN_SAVING) * 2 * single_s

    def _stack_sizes(self, mode: int, members: Sequence[str]) -> list[int]:
        """Returns the numbers of images of each member that are measured, up to the most that one decision may need.

        Long executions are left out. All members have the same architecture, so the costs of the first decide.
        """
        sizes = range(1, math.ceil(self.max_batch_size / len(members)) + 1)
        alone_s = self._measured_s(mode, members[0], sizes)
        return [size for size, seconds in alone_s.items() if len(members) * seconds <= MAX_EXECUTION_S]

    def _is_missing(self, mode: int, combination: Combination) -> bool:
        return not self._has_failed(mode, combination) and self._find_s(mode, dict(combination)) is None

    def _measured_s(self, mode: int, name: str, sizes: Iterable[int]) -> dict[int, float]:
        """Returns the known costs of a model or a stack, by the number of images."""
        found = {size: self._find_s(mode, {name: size}) for size in sizes}
        return {size: seconds for size, seconds in found.items() if seconds is not None}

    def _find_s(self, mode: int, counts: Mapping[str, int]) -> float | None:
        return self._kept.find_s(mode, self._cost_key(combination_of(counts)))

    def _cost_key(self, combination: Combination) -> CostKey:
        return tuple(sorted((self._kind_of(name), count) for name, count in combination))

    def _kind_of(self, name: str) -> str:
        """Returns a description of a model or a stack that does not depend on its name."""
        return self._stack_kind(list(self._stacks[name].members)) if name in self._stacks else self._models[name].kind

    def _stack_kind(self, members: Sequence[str]) -> str:
        return f"{len(members)} as one network: {self._kind_of(members[0])}"


def _fusable(costs: ExecutionCosts) -> Iterable[Combination]:
    return itertools.islice(fusable_combinations(costs.parameters), MAX_FUSED)
