"""The stacks that may run: groups of served models of one architecture that are computed as one network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from split_infer_ros.server.costs.cost_table import CostTable
from split_infer_ros.server.served_model import ServedModel

if TYPE_CHECKING:
    from split_infer_ros.split.stacked_model import StackedModel


class StacksInUse:
    """Keeps the stacks that fit the served models and pay. Callers hold the server's lock.

    Args:
        models: the models that are served, by key.
        table: measures the stacks, and knows which ones do not pay.

    Attributes:
        by_name: the stacks by name.
    """

    def __init__(self, models: Mapping[str, ServedModel], table: CostTable) -> None:
        self.by_name: dict[str, StackedModel] = {}
        self._models = models
        self._table = table

    def use(self, stacks: Sequence[StackedModel]) -> bool:
        """Uses each of these stacks if all its members are served up to its split point; returns if that is a change.

        A stack is released once measurements show that it does not pay.
        """
        present = [stack for stack in stacks if all(self._has(stack, key) for key in stack.members)]
        if present == list(self.by_name.values()):
            return False
        self._keep(present)
        return True

    def remove_model(self, key: str) -> None:
        """Releases the stacks of a model that is no longer served."""
        self._keep([stack for stack in self.by_name.values() if key not in stack.members])

    def release_what_does_not_pay(self) -> None:
        """Releases the stacks that cost no less than their models one by one."""
        useful = [stack for stack in self.by_name.values() if self._table.stack_pays(list(stack.members)) is not False]
        if len(useful) < len(self.by_name):
            self._keep(useful)

    def _has(self, stack: StackedModel, key: str) -> bool:
        """Returns whether a member of a stack is served with the same model and split point as in the stack."""
        served = self._models.get(key)
        if served is None or served.plan.model is not stack.members[key]:
            return False
        return served.plan.split_point.name == stack.split_point

    def _keep(self, stacks: Sequence[StackedModel]) -> None:
        self.by_name = {stack.name: stack for stack in stacks}
        self._table.set_stacks(stacks)
