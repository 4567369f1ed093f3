"""One cost table for each execution mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from split_infer_ros.images.pixel_input import PixelInput
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.server.costs.cost_table import CostTable
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.split.model import SplitModel

if TYPE_CHECKING:
    from split_infer_ros.split.stacked_model import StackedModel


class CostTables:
    """The costs of the loaded models in every execution mode. Costs on lanes exist only for models that have lanes.

    Args:
        key: the device and the versions under which costs are kept.
        database: keeps costs. They are loaded from it.
        max_batch_size: the largest batch that is measured.
        graphs: whether executions are recorded as graphs.
        num_lanes: number of lanes, one a core; 0 if all cores, or the GPU, are the only execution mode.

    Attributes:
        whole: costs on all cores, or on the GPU.
        lane: costs on one lane, while all lanes are at work; None without lanes.
    """

    def __init__(self, key: Key, database: Database, *, max_batch_size: int, graphs: bool, num_lanes: int) -> None:
        self.whole = CostTable(key, database, max_batch_size=max_batch_size, graphs=graphs)
        self.lane: CostTable | None = None
        self._tables = [self.whole]
        if num_lanes:
            self.lane = CostTable(key, database, max_batch_size=max_batch_size, graphs=graphs, num_lanes=num_lanes)
            self._tables.append(self.lane)
        self._num_lanes = num_lanes

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Changes the largest batch that is measured."""
        for table in self._tables:
            table.max_batch_size = max_batch_size

    def load_costs(self) -> None:
        """Takes costs from the database. Other threads may use the tables meanwhile."""
        for table in self._tables:
            table.load_costs()

    def add_model(
        self, name: str, model: SplitModel, variant: str, pixels: PixelInput | None, *, has_lanes: bool
    ) -> None:
        """Adds a model, or replaces one that has a new plan. ``CostTable.add_model`` explains the other arguments.

        Args:
            has_lanes: whether the model can be computed on lanes. If not, costs on lanes are not measured.
        """
        self.whole.add_model(name, model, variant, pixels)
        if self.lane is not None and has_lanes:
            self.lane.add_model(name, model, variant, pixels)
        elif self.lane is not None and name in self.lane.models:
            self.lane.remove_model(name)

    def remove_model(self, name: str) -> None:
        """Removes a model. Its costs stay for a later ``add_model``."""
        for table in self._tables:
            if name in table.models:
                table.remove_model(name)

    def set_stacks(self, stacks: Sequence[StackedModel]) -> None:
        """Replaces the stacks by exactly these, in every table."""
        for table in self._tables:
            table.set_stacks(stacks)

    def stack_pays(self, members: Sequence[str]) -> bool | None:
        """Returns whether a stack of these models saves time in any execution mode; None while this is not known."""
        verdicts = [table.stack_pays(members) for table in self._tables]
        if True in verdicts:
            return True
        return None if None in verdicts else False

    def is_ready(self, name: str) -> bool:
        """Returns whether all batches of the model are measured in every execution mode."""
        return all(table.is_ready(name) for table in self._tables)

    def has_failed(self, name: str) -> bool:
        """Returns whether the model could not run even a single image in one of the execution modes."""
        return any(table.has_failed(name) for table in self._tables)

    def costs(self) -> ExecutionModes:
        """Returns the costs of all models with at least one measured batch."""
        whole = self.whole.costs()
        if self.lane is None:
            return ExecutionModes(whole)
        return ExecutionModes(whole, self._num_lanes, self.lane.costs())
