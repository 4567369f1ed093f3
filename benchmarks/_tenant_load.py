"""The prepared models that all rivals run, an image for each, and the engines that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from _tenant_log import Log
from torch import Tensor

from split_infer_ros.serving.execution_costs import ExecutionCosts, Group
from split_infer_ros.serving.execution_timing import blank
from split_infer_ros.serving.merge_runner import Engine
from split_infer_ros.serving.request import Request
from split_infer_ros.split.load import build_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec


@dataclass(frozen=True)
class Load:
    """The models and an image for each; all on one device.

    Attributes:
        models: by name.
        images: one for each model.
        engines: that rivals were given so far, by their cores and numbers.
    """

    models: Mapping[str, SplitModel]
    images: Mapping[str, Tensor]
    engines: dict[tuple[int | None, int], Engine] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where all models are."""
        return next(iter(self.models.values())).device

    def new_engine(self, cores: int | None = None) -> Engine:
        """An engine that has all models, which count the same. The caller closes it."""
        made = Engine(self.device, cores=cores)
        self._give_models(made, None)
        return made

    def engine(self, costs: ExecutionCosts | None = None, cores: int | None = None, number: int = 0) -> Engine:
        """The engine of so many cores that has this number. What a GPU recorded for one rival stays recorded.

        Args:
            costs: by which models share cores; None: all count the same.
            cores: of a CPU; None: all.
            number: of those that work side by side.
        """
        if (cores, number) not in self.engines:
            self.engines[cores, number] = Engine(self.device, cores=cores)
        made = self.engines[cores, number]
        self._give_models(made, costs)
        self.record(made, [((name, 1),) for name in self.models])
        return made

    def record(self, engine: Engine, combinations: Iterable[Group]) -> None:
        """Have these ready on a GPU before requests come; several models as one only as far as there is memory."""
        for combination in combinations:
            if engine.graphs is None or len(combination) == 1 or engine.graphs.has_room(combination):
                engine.prepare({name: self.batch(name, count) for name, count in combination})

    def batch(self, model: str, count: int) -> Tensor:
        """So many images of a model, put together anew as those of real requests are."""
        return torch.cat([self.images[model]] * count) if count > 1 else self.images[model]

    def close(self) -> None:
        """End the engines that rivals were given."""
        for engine in self.engines.values():
            engine.close()
        self.engines.clear()

    def _give_models(self, engine: Engine, costs: ExecutionCosts | None) -> None:
        backbones = {name: model.backbone("output") for name, model in self.models.items()}
        engine.load(backbones, {name: costs.batch_s(name, 1) if costs else 1.0 for name in backbones})


Serve = Callable[[Sequence[Request], Load], Log]


def load_models(names: Sequence[str], side: int, device: torch.device) -> Load:
    """Catalogue models with untrained weights, for square images.

    Args:
        names: of the catalogue.
        side: of an image, in pixels.
        device: where they run.
    """
    models = {}
    for name in names:
        entry, module = build_model(ModelSpec(name, "none"))
        smaller = replace(entry, preprocess=replace(entry.preprocess, height=side, width=side))
        models[name] = SplitModel(smaller, module, device)
    return Load(models, {name: torch.rand_like(blank(model, 1)) for name, model in models.items()})
