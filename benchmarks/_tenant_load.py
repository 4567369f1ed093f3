"""The prepared models that all rivals run, an image for each, and the runners that execute them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from _tenant_log import Log
from torch import Tensor

from split_infer_ros.server.execution.merge_runner import MergeRunner
from split_infer_ros.server.schedule.execution_costs import Combination, ExecutionCosts
from split_infer_ros.server.schedule.request import Request
from split_infer_ros.split.load import build_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.stacked_model import StackedModel
from split_infer_ros.split.torch_model import TorchModel


@dataclass(frozen=True)
class Load:
    """The models and an image for each; all on one device.

    Attributes:
        models: by name.
        images: one for each model.
        stacks: networks that each compute several of the models, by name.
        runners: those that rivals were given so far, by their number of threads and their own number.
    """

    models: Mapping[str, TorchModel]
    images: Mapping[str, Tensor]
    stacks: Mapping[str, StackedModel] = field(default_factory=dict)
    runners: dict[tuple[int | None, int], MergeRunner] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where all models are."""
        return next(iter(self.models.values())).device

    def new_runner(self, num_threads: int | None = None) -> MergeRunner:
        """Returns a new runner with all models, which share cores evenly. The caller closes it."""
        runner = MergeRunner(self.device, num_threads=num_threads)
        self._load_models(runner, None)
        return runner

    def runner(
        self, costs: ExecutionCosts | None = None, *, num_threads: int | None = None, number: int = 0
    ) -> MergeRunner:
        """Returns the runner of this number. What a GPU recorded for one rival stays recorded.

        Args:
            costs: by which models share cores; None: evenly.
            num_threads: of a CPU; None: all cores.
            number: of the runners that work concurrently.
        """
        if (num_threads, number) not in self.runners:
            self.runners[num_threads, number] = MergeRunner(self.device, num_threads=num_threads)
        runner = self.runners[num_threads, number]
        self._load_models(runner, costs)
        self.record(runner, [((name, 1),) for name in self.models])
        return runner

    def record(self, runner: MergeRunner, combinations: Iterable[Combination]) -> None:
        """Records these on a GPU before requests come; fused models only if there is memory."""
        for combination in combinations:
            if runner.graphs is None or len(combination) == 1 or runner.graphs.has_room(combination):
                runner.prepare({name: self.batch(name, count) for name, count in combination})

    def batch(self, model: str, count: int) -> Tensor:
        """Returns a batch of the model's image, copied together anew like the images of real requests."""
        if model in self.stacks:
            return self.stacks[model].join({name: self.batch(name, count) for name in self.stacks[model].members})
        return torch.cat([self.images[model]] * count) if count > 1 else self.images[model]

    def close(self) -> None:
        """Closes the runners that rivals were given."""
        for runner in self.runners.values():
            runner.close()
        self.runners.clear()

    def _load_models(self, runner: MergeRunner, costs: ExecutionCosts | None) -> None:
        backbones = {name: model.backbone("output") for name, model in self.models.items()}
        image_s = {name: costs.batch_s(name, 1) if costs else 1.0 for name in backbones}
        for name, stack in self.stacks.items():
            backbones[name], image_s[name] = stack.backbone, 1.0
        runner.load(backbones, image_s)


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
        models[name] = TorchModel(smaller, module, device)
    return Load(models, {name: torch.rand_like(model.blank_images(1)) for name, model in models.items()})
