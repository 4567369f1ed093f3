"""Builds stacks of served models. A stack computes several models of one architecture as one network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import Compiler
from split_infer_ros.errors import ConfigurationError, Notice
from split_infer_ros.runtime.faults import is_sticky
from split_infer_ros.runtime.shortage import summarize_error
from split_infer_ros.server.costs.cost_table import CostTable
from split_infer_ros.server.memory.tried_plan import check_room_for_weights
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.server.served_models import ServedModels

if TYPE_CHECKING:
    from split_infer_ros.split.model import SplitModel
    from split_infer_ros.split.stacked_model import StackedModel

MAX_MEMBERS = 4  # the most models in a stack; members without a request are computed in vain
MAX_PARAMETERS = 64_000_000  # the most in a stack: it copies all weights, and larger models fill a processor alone


class StackBuilder:
    """Keeps the stacks up to date as models come and go.

    Args:
        changed: the condition that guards state shared with other threads; held briefly.
        models: the models that are served; gets their stacks.
        table: knows which stacks save no time on this machine. Those stacks are not built.
        on_error: called with a stack's name and the reason why its models cannot run as one network.
    """

    def __init__(
        self,
        changed: threading.Condition,
        models: ServedModels,
        table: CostTable,
        on_error: Callable[[str, Exception], None],
    ) -> None:
        self._changed = changed
        self._models = models
        self._table = table
        self._on_error = on_error
        self._refused: set[tuple[tuple[SplitModel, ...], str]] = set()
        self._building = threading.Lock()

    def build(self) -> None:
        """Builds missing stacks, and has exactly the stacks used that fit the present models.

        Building can take tenths of a second or more. Frames flow meanwhile.
        """
        with self._building:
            with self._changed:
                groups = groups_of(self._models.by_key)
                present = dict(self._models.stacks)
            stacks = []
            for members, split_point in groups:
                stack = present.get(" + ".join(members))
                if stack is None or (stack.members, stack.split_point) != (members, split_point):
                    stack = self._built(members, split_point)
                if stack is not None:
                    stacks.append(stack)
            with self._changed:
                self._models.use_stacks(stacks)

    def _built(self, members: Mapping[str, SplitModel], split_point: str) -> StackedModel | None:
        models = tuple(members.values())
        with self._changed:
            if (models, split_point) in self._refused or self._table.stack_pays(list(members)) is False:
                return None
        try:
            from split_infer_ros.split.stacked_model import StackedModel  # only here: it imports torch

            check_room_for_weights(" + ".join(members), models, split_point)
            return StackedModel(members, split_point)
        except Exception as error:  # memory is short, or a user's own model cannot be stacked
            self._refused.add((models, split_point))
            is_refusal = isinstance(error, ConfigurationError)
            reason = str(error) if is_refusal else f"the network cannot be made ({summarize_error(error)})."
            notice = Notice(f"The models are not computed as one network: {reason}")
            self._on_error(" + ".join(members), error if is_sticky(error) else notice)
            return None


def groups_of(models: Mapping[str, ServedModel]) -> list[tuple[dict[str, SplitModel], str]]:
    """Returns for each possible stack its models by key, and the split point up to which they are computed.

    Models of one stack have the same architecture, split point, device and execution config. An architecture with more
    than ``MAX_MEMBERS`` models has several stacks. A model is in no stack if torch does not run it, if it is compiled,
    or if its weights are streamed. It is in none either while another engine takes turns with its own. A model that is
    served under several keys is in a stack once.
    """
    alike: dict[tuple[str, object], dict[str, Any]] = {}
    for key, served in models.items():
        plan = served.plan
        model, config = plan.model, plan.model.execution_config
        if (
            model.can_be_stacked
            and config.engine is Engine.TORCH
            and config.compiler is Compiler.NONE
            and not config.segments
            and plan.streamed is None
            and not served.is_contested
        ):
            architecture = model.network.fingerprint, model.image_shape, model.device, config
            members = alike.setdefault((plan.split_point.name, architecture), {})
            if model not in members.values():
                members[key] = model
    groups = []
    for (split_point, _), members in alike.items():
        keys = list(members)
        parameters = next(iter(members.values())).network.num_parameters(split_point)
        most = min(MAX_MEMBERS, MAX_PARAMETERS // max(1, parameters))
        if most > 1 and parameters:
            parts = [keys[first : first + most] for first in range(0, len(keys), most)]
            groups += [({key: members[key] for key in part}, split_point) for part in parts if len(part) > 1]
    return groups
