"""One model of the benchmark: as built, and prepared on each engine, with its images, limits and profiles."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from benchmarks.common.images import draw_images
from benchmarks.rivals.finish import limits_for
from benchmarks.rivals.image_feed import ImageFeed
from benchmarks.rivals.pipelines import SplitPipeline
from benchmarks.two_processors.processors import Processors
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.detections import Limits
from split_infer_ros.models.onnx_models import is_onnx_file
from split_infer_ros.runtime.cores import StageCores
from split_infer_ros.runtime.num_threads import max_threads, run_with_threads
from split_infer_ros.server.profiling.profiler import Effort, Profiler
from split_infer_ros.split.load import build_model, load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.profile import Profile
from split_infer_ros.split.profile_samples import make_profile

NUM_IMAGES = 64
WHOLE = "output"  # the split point behind the last block: the backbone is the whole model
TRIAL_SIZE, TRIAL_BATCHES = 16, 3  # of the brief turn that compares engines


class Subject:
    """One model, with what all its rivals share.

    Args:
        name: a name of the catalogue, or an ONNX file. A model of the catalogue gets seeded weights.
        processors: the two processors.
        effort: how much each profile measures.

    Attributes:
        name: the model's name in reports.
        processors: as given.
        images: the images that all rivals get.
        module: the whole model as built.
        limits: the limits that decide which detections are kept. For a file, they are the package's default.
    """

    def __init__(self, name: str, processors: Processors, effort: Effort) -> None:
        is_file = is_onnx_file(name)
        self.name = Path(name).stem if is_file else name
        self.processors = processors
        self._effort = effort
        self._spec = ModelSpec(name, weights="default" if is_file else "random", device="cpu", on_torch=True)
        self.entry, built = build_model(self._spec)
        assert isinstance(built, nn.Module)  # because of ``on_torch``
        self.module = built
        self.images = draw_images(self.entry, NUM_IMAGES)
        self.limits = Limits() if is_file else run_with_threads(max_threads(), self._fitting_limits)

    def model(self, engine: Engine) -> SplitModel:
        """Returns the prepared model on an engine. Each call returns a new one, which compiles its own partitions.

        An engine keeps the threads with which it compiled a partition. So rivals on other cores may not share one.
        """
        config = ExecutionConfig(engine=engine)
        on_torch = True if engine is Engine.TORCH else None
        loaded = load_model(replace(self._spec, on_torch=on_torch, execution_config=config))
        return loaded.placed(loaded.device, config)

    def pipeline(
        self,
        model: SplitModel,
        split_point: str,
        batch_size: int,
        *,
        cores: StageCores,
        ahead: int = 1,
        one_by_one: bool = False,
    ) -> SplitPipeline:
        """Returns a pipeline; see ``SplitPipeline`` for the arguments."""
        return SplitPipeline(
            model,
            split_point=split_point,
            feed=ImageFeed(self.images, batch_size),
            limits=self.limits,
            ahead=0 if one_by_one else ahead,
            cores=cores,
            one_by_one=one_by_one,
        )

    def measure(self, engine: Engine, batch_size: int) -> Profile:
        """Measures and returns a profile, each stage on its processor. It is never read from the database."""
        model = self.model(engine)
        profiler = Profiler(
            model, image=self.images[0], limits=self.limits, effort=self._effort, cores=self.processors.stages
        )
        return make_profile(
            model=model.entry.name,
            device=str(model.device),
            split_points=model.split_points,
            samples=profiler.measure([batch_size]),
        )

    def fastest_engine(self) -> tuple[Engine, dict[Engine, float]]:
        """Returns the engine other than torch that runs the whole model fastest on the accelerator.

        Also returns the images a second of each engine in a brief turn.

        Raises:
            SystemExit: no such engine runs the model.
        """
        speeds: dict[Engine, float] = {}
        for engine in (Engine.OPENVINO, Engine.ONNXRUNTIME):
            try:
                speeds[engine] = self._trial(engine)
            except ConfigurationError as error:
                print(f"{self.name}: {error}", flush=True)
        if not speeds:
            raise SystemExit(f"Neither OpenVINO nor ONNX Runtime runs {self.name}: take --engines torch.")
        return max(speeds, key=lambda engine: speeds[engine]), speeds

    def _trial(self, engine: Engine) -> float:
        whole = self.pipeline(self.model(engine), WHOLE, TRIAL_SIZE, cores=self.processors.stages, one_by_one=True)
        try:
            return whole.take_turn(TRIAL_BATCHES, nullcontext())["images_per_s"]
        finally:
            whole.close()

    def _fitting_limits(self) -> Limits:
        preprocess = self.entry.preprocess
        pictures = self.images[::8]
        gathered = preprocess.gather(pictures, preprocess.staging(len(pictures)))
        return limits_for(self.entry, self.module, torch.from_numpy(preprocess.normalise(gathered)))
