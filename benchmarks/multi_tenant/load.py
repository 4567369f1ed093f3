"""The prepared models that all rivals run, an image for each model, and the runners that execute them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from benchmarks.multi_tenant.log import Log
from split_infer_ros.engines.compute import Images
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.runtime.num_threads import max_threads
from split_infer_ros.server.costs.cost_measurer import WARM_UPS
from split_infer_ros.server.execution.merge_runner import MergeRunner
from split_infer_ros.server.schedule.execution_costs import Combination, ExecutionCosts
from split_infer_ros.server.schedule.request import Request
from split_infer_ros.split.load import build_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.stacked_model import StackedModel
from split_infer_ros.split.torch_network import TorchNetwork

TRIALS = 5  # runs of each engine, if several are compared


@dataclass(frozen=True)
class Load:
    """Holds the models and an image for each model, all on one device.

    Attributes:
        models: the models, by name.
        images: an image for each model, by the model's name.
        stacks: the stacks, by name. A stack computes several of the models as one network.
        runners: the runners that ``runner`` has made so far, by the number of threads and the number of the runner.
    """

    models: Mapping[str, SplitModel]
    images: Mapping[str, Images]
    stacks: Mapping[str, StackedModel] = field(default_factory=dict)
    runners: dict[tuple[int | None, int], MergeRunner] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """The device of all models."""
        return next(iter(self.models.values())).device

    @property
    def engines(self) -> set[Engine]:
        """The engines that run the models."""
        return {model.execution_config.engine for model in self.models.values()}

    def new_runner(self, num_threads: int | None = None) -> MergeRunner:
        """Returns a new runner with all models. Fused models share its cores evenly. The caller closes the runner."""
        runner = self._make(num_threads)
        self._load_models(runner, None)
        return runner

    def runner(
        self, costs: ExecutionCosts | None = None, *, num_threads: int | None = None, number: int = 0
    ) -> MergeRunner:
        """Returns a runner with all models. The same arguments give the same runner to every rival.

        On a GPU, graphs that were recorded for one rival therefore serve other rivals as well.

        Args:
            costs: the costs of batches of one image. Fused models share cores in their proportion. None: evenly.
            num_threads: the number of threads on a CPU. None: all cores.
            number: tells apart the runners that work concurrently.
        """
        if (num_threads, number) not in self.runners:
            self.runners[num_threads, number] = self._make(num_threads)
        runner = self.runners[num_threads, number]
        self._load_models(runner, costs)
        self.record(runner, [((name, 1),) for name in self.models])
        return runner

    def record(self, runner: MergeRunner, combinations: Iterable[Combination]) -> None:
        """On a GPU, records the graphs of combinations in a runner, so that no request waits for it.

        A combination of several models is recorded only if memory is left. On a CPU, nothing is recorded.
        """
        for combination in combinations:
            if runner.graphs is None or len(combination) == 1 or runner.graphs.has_room(combination):
                runner.prepare({name: self.batch(name, count) for name, count in combination})

    def batch(self, model: str, count: int) -> Images:
        """Returns a batch of ``count`` copies of the image of a model, or of each model of a stack.

        The images are joined anew at each call, like those of real requests.
        """
        if model in self.stacks:
            return self.stacks[model].join({name: self.batch(name, count) for name in self.stacks[model].members})
        image = self.images[model]
        if count == 1:
            return image
        return np.concatenate([image] * count) if isinstance(image, np.ndarray) else torch.cat([image] * count)

    def close(self) -> None:
        """Closes all runners that ``runner`` has made."""
        for runner in self.runners.values():
            runner.close()
        self.runners.clear()

    def _make(self, num_threads: int | None) -> MergeRunner:
        num_lanes = max(1, max_threads() // num_threads) if num_threads else 1  # so many share the cores evenly
        return MergeRunner(self.device, num_threads=num_threads, num_lanes=num_lanes)

    def _load_models(self, runner: MergeRunner, costs: ExecutionCosts | None) -> None:
        backbones = {name: model.backbone("output") for name, model in self.models.items()}
        image_s = {name: costs.batch_s(name, 1) if costs else 1.0 for name in backbones}
        for name, stack in self.stacks.items():
            backbones[name], image_s[name] = stack.backbone, 1.0
        runner.load(backbones, image_s, {name: model.execution_config.engine for name, model in self.models.items()})


Serve = Callable[[Sequence[Request], Load], Log]


def load_models(
    names: Sequence[str], side: int, device: torch.device, engines: Sequence[Engine] = (Engine.TORCH,)
) -> Load:
    """Loads models of the catalogue with untrained weights, for square images.

    Args:
        names: names in the catalogue.
        side: the side of an image, in pixels.
        device: the device that runs the models.
        engines: each model runs on that engine of these which computes a single image fastest.
    """
    models = {}
    for name in names:
        entry, module = build_model(ModelSpec(name, "none"))
        smaller = replace(entry, preprocess=replace(entry.preprocess, height=side, width=side))
        network = TorchNetwork(smaller, module)
        able = [SplitModel(network, device, ExecutionConfig(engine=engine)) for engine in engines]
        models[name] = able[0] if len(able) == 1 else fastest(able)
    return Load(models, {name: random_image(model) for name, model in models.items()})


def fastest(models: Sequence[SplitModel]) -> SplitModel:
    """Returns the model that computes a single image fastest on all cores. The models take turns."""
    times_s: list[list[float]] = [[] for _ in models]
    loads = [Load({"model": model}, {"model": random_image(model)}) for model in models]
    for _ in range(WARM_UPS + TRIALS):
        for own_s, load in zip(times_s, loads, strict=True):
            begin = time.perf_counter()
            load.runner().run(load.images)
            own_s.append(time.perf_counter() - begin)
    for load in loads:
        load.close()
    medians_s = [statistics.median(own_s[WARM_UPS:]) for own_s in times_s]
    return models[medians_s.index(min(medians_s))]


def random_image(model: SplitModel) -> Images:
    """Returns a random image in the form in which the model's backbone takes images."""
    blank = model.blank_images(1)
    if isinstance(blank, np.ndarray):
        return np.random.default_rng(0).random(blank.shape).astype(blank.dtype)
    return torch.rand_like(blank)
