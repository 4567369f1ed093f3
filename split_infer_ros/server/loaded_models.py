"""What an executor must load to run the served models and their stacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from split_infer_ros.engines.compute import Backbone
from split_infer_ros.engines.engine import Engine
from split_infer_ros.server.served_model import ServedModel

if TYPE_CHECKING:
    from split_infer_ros.split.stacked_model import StackedModel


@dataclass(frozen=True, slots=True)
class LoadedModels:
    """Models and stacks by name. A stack is measured like a model.

    Attributes:
        backbones: what computes each of them.
        image_s: the seconds that one image takes; 1 if this is not known.
        engines: the engine of each.
        num_threads: each model's threads for executions on all cores. 0 or a missing entry means all threads.
    """

    backbones: Mapping[str, Backbone]
    image_s: Mapping[str, float]
    engines: Mapping[str, Engine]
    num_threads: Mapping[str, int]

    @classmethod
    def of(
        cls, models: Iterable[ServedModel], stacks: Mapping[str, StackedModel], image_s: Callable[[str], float]
    ) -> LoadedModels:
        """Returns what must be loaded now (lock held).

        Args:
            models: the models. If two have the same key, the last one counts.
            stacks: the stacks by name.
            image_s: returns the seconds that a model takes for one image; 0 if unknown.
        """
        loaded = {model.key: model for model in models}
        return cls(
            {key: model.backbone for key, model in loaded.items()}
            | {name: stack.backbone for name, stack in stacks.items()},
            {key: image_s(key) or 1.0 for key in loaded} | dict.fromkeys(stacks, 1.0),
            {key: model.plan.model.execution_config.engine for key, model in loaded.items()}
            | dict.fromkeys(stacks, Engine.TORCH),
            {key: model.plan.model.execution_config.threads for key, model in loaded.items()},
        )
