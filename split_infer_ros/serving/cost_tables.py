"""A book of costs for each way in which models may run."""

from __future__ import annotations

from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.serving.cost_table import CostTable
from split_infer_ros.serving.execution_modes import ExecutionModes
from split_infer_ros.split.model import SplitModel


class CostTables:
    """What is known of the models that are open; a model is ready once all books know it.

    Args:
        key: of the device.
        database: from which costs are taken, and in which they are kept.
        most: the largest batch that is measured.
        graphs: whether executions are recorded.
        lanes: how many, one a core; 0: there is one way alone.

    Attributes:
        whole: costs with all cores, or on the GPU.
        lane: costs on a lane, while all of them are at work; None where there are none.
    """

    def __init__(self, key: Key, database: Database, most: int, graphs: bool, lanes: int) -> None:
        self.whole = CostTable(key, database, most, graphs)
        self.lane = CostTable(key, database, most, graphs, lanes) if lanes else None
        self._lanes = lanes
        self._all = [self.whole] if self.lane is None else [self.whole, self.lane]

    def limit(self, most: int) -> None:
        """The largest batch that is measured is another one now."""
        for table in self._all:
            table.most = most

    def recall(self, model: SplitModel) -> None:
        """Take over what the database has, for such models; may be called beside all else."""
        for table in self._all:
            table.recall(model)

    def open(self, name: str, model: SplitModel, form: str) -> None:
        """A model comes, to be run in that form: up to which split point, with which weights."""
        for table in self._all:
            table.open(name, model, form)

    def close(self, name: str) -> None:
        """A model goes; what is known of it stays."""
        for table in self._all:
            table.close(name)

    def is_ready(self, name: str) -> bool:
        """True once the model's batches were measured."""
        return all(table.is_ready(name) for table in self._all)

    def failed(self, name: str) -> bool:
        """True if the model could not run even a single image."""
        return any(table.failed(name) for table in self._all)

    def costs(self) -> ExecutionModes:
        """Of the models of which anything is known."""
        whole = self.whole.costs()
        return ExecutionModes(whole) if self.lane is None else ExecutionModes(whole, self._lanes, self.lane.costs())
