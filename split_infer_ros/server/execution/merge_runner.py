"""Runs the batches of several models as one execution, as the scheduler decided.

On a CPU, the models share the cores. On a GPU, one CUDA graph forks the models over streams and joins them.

The paper on kernel merge and fusion rewrites kernels (PTX) so that one launch does the work of several. Here, kernels
stay unchanged, except those of models with convolutions ``merged``. With merging, a model's weights are read once for
all images of a batch, and one graph launches the kernels of all models. If one model does not fill the GPU, kernels of
several models run concurrently. Models of one architecture can run as one network, a ``StackedModel``. Each of its
kernels does the work of all these models.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from split_infer_ros.engines.compute import Backbone, Features, Images
from split_infer_ros.engines.cuda.model_streams import ModelStreams
from split_infer_ros.engines.engine import Engine
from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.inference import inference_mode
from split_infer_ros.runtime.num_threads import max_threads
from split_infer_ros.runtime.streams import Fence, Stream
from split_infer_ros.server.execution.forked_graphs import ForkedGraphs
from split_infer_ros.server.execution.stack_run import run_stack
from split_infer_ros.server.schedule.core_sharing import CoreShare, share_cores

if TYPE_CHECKING:
    from split_infer_ros.split.stacked_model import StackedModel

Inputs = Mapping[str, Images]  # images by model: float (n, 3, h, w) on the device, with the model's size and dtype
Outputs = dict[str, Features]
StoreFeatures = Callable[[str, Features], object]
Compute = Callable[[str, Backbone, Images], object]

GRAPH_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class LaunchedExecution:
    """An execution that was given to the device.

    Attributes:
        done: the fence after which all features are stored, except those of models that failed.
        failed: the models whose batches are lost, and why.
    """

    done: Fence
    failed: Mapping[str, Exception]


class MergeRunner:
    """Runs executions of the loaded models, all on one device. Only one thread may use it.

    Args:
        device: the device on which the models run.
        graph_bytes: bytes of GPU memory that recorded graphs may take. None: nothing is recorded, and each kernel is
            launched by itself.
        num_threads: threads of an execution on a CPU; None: all cores. Runners of one thread each may work
            concurrently.
        num_lanes: how many runners, this one included, may run the same models at the same time.

    Attributes:
        graphs: the recorded graphs; None if nothing is recorded.
        stream: the stream in which executions run.
    """

    def __init__(
        self,
        device: Device,
        graph_bytes: int | None = GRAPH_BYTES,
        *,
        num_threads: int | None = None,
        num_lanes: int = 1,
    ) -> None:
        self._num_threads, self._num_lanes = num_threads or max_threads(), num_lanes
        self._backbones: dict[str, Backbone] = {}
        self._image_s: dict[str, float] = {}
        self._engines: dict[str, Engine] = {}
        self._model_threads: dict[str, int] = {}
        self._threads = ThreadPoolExecutor(self._num_threads, "core share")
        self.stream = Stream(device)
        self._model_streams = ModelStreams(device, self.stream)
        self.graphs: ForkedGraphs | None = None
        if self.is_asynchronous and graph_bytes is not None:
            self.graphs = ForkedGraphs(self._model_streams, graph_bytes)

    @property
    def is_asynchronous(self) -> bool:
        """True if an execution may still run when ``launch`` returns."""
        return self.stream.is_asynchronous

    @property
    def models(self) -> Collection[str]:
        """The names of the loaded models."""
        return self._backbones.keys()

    def load(
        self,
        backbones: Mapping[str, Backbone],
        image_s: Mapping[str, float],
        engines: Mapping[str, Engine] = MappingProxyType({}),
        num_threads: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Replaces all loaded models by the given ones.

        Args:
            backbones: the backbones by the model's name. Each maps n images (n, 3, h, w) to the features at its split
                point.
            image_s: the seconds that an image of each model takes on one core. They decide how models share cores.
            engines: the engine of each model; torch for models that are not named.
            num_threads: how many threads each model uses on a CPU if it runs alone; all threads of the runner if 0 or
                not named.
        """
        removed = [name for name, backbone in self._backbones.items() if backbones.get(name) is not backbone]
        if self.graphs is not None:
            self.graphs.remove_models(removed)
        self._backbones, self._image_s, self._engines = dict(backbones), dict(image_s), dict(engines)
        self._model_threads = dict(num_threads)

    def set_threads(self, model: str, num_threads: int | None = None) -> None:
        """Sets how many threads the model's engine uses for the calling thread.

        Args:
            model: the model that is pre-processed or computed next.
            num_threads: number of threads on a CPU; None: the number that the model uses if it runs alone.
        """
        count = num_threads or self._model_threads.get(model) or self._num_threads
        self._engines.get(model, Engine.TORCH).use_threads(count, self._num_lanes)

    def prepare(self, inputs: Inputs) -> None:
        """Records the execution of these batches as a CUDA graph, which takes tenths of a second.

        Does nothing if the runner records no graphs, or if memory does not suffice.
        """
        if self.graphs is not None:
            with inference_mode(), self.stream.work("prepare"):
                self.graphs.prepare({model: self._backbones[model] for model in inputs}, inputs)

    def run(self, inputs: Inputs, stack: StackedModel | None = None) -> Outputs:
        """Runs one execution to its end. Returns the features of each model.

        On a GPU, the features stay valid until these models run again.

        Args:
            inputs: a batch of each model that takes part.
            stack: computes all these models as one network; None if each model computes its own batch.

        Raises:
            Exception: the error of a model, raised once the other models are done.
        """
        outputs: Outputs = {}
        launched = self.launch(inputs, outputs.__setitem__, stack=stack)
        launched.done.wait()
        for error in launched.failed.values():
            raise error
        return outputs

    def launch(
        self,
        inputs: Inputs,
        store_features: StoreFeatures,
        wait_for: Sequence[Fence] = (),
        compute: Compute | None = None,
        stack: StackedModel | None = None,
    ) -> LaunchedExecution:
        """Launches one execution. On a CPU, the execution is done when this returns. On a GPU, it may still run.

        Args:
            inputs: a batch of each model that takes part. The caller keeps them until the execution is done.
            store_features: called with each model and its features while they are valid. On a CPU it is called on the
                thread that computed them, and on a GPU within the execution's stream.
            wait_for: fences of the work that writes the inputs.
            compute: called on a CPU in place of ``store_features``, with each model, its backbone and its images. It
                runs the backbone and stores the features. This saves a copy if the backbone can write the features to
                their place itself. It is not called for a stack.
            stack: computes all these models as one network; None if each model computes its own batch.
        """
        if self.stream.is_asynchronous:
            return self._launch_on_gpu(inputs, store_features, wait_for, stack)
        failed: dict[str, Exception] = {}
        if stack is not None:
            self.set_threads(stack.name)
            with inference_mode():
                return LaunchedExecution(Fence(), run_stack(stack, inputs, store_features, stack.backbone))
        work_s = {model: self._image_s[model] * len(images) for model, images in inputs.items()}
        first, *others = share_cores(work_s, self._num_threads)

        def store(model: str, backbone: Backbone, images: Images) -> None:
            store_features(model, backbone(images))

        running = [self._threads.submit(self._run_share, share, inputs, compute or store, failed) for share in others]
        self._run_share(first, inputs, compute or store, failed)
        for share in running:
            share.result()
        return LaunchedExecution(Fence(), failed)

    def close(self) -> None:
        """Ends the threads, waits until the device is done, and forgets the models."""
        self._threads.shutdown()
        self.stream.fence().wait()
        self.load({}, {})

    def _launch_on_gpu(
        self,
        inputs: Inputs,
        store_features: StoreFeatures,
        wait_for: Sequence[Fence],
        stack: StackedModel | None,
    ) -> LaunchedExecution:
        failed: dict[str, Exception] = {}
        launcher = self._model_streams if self.graphs is None else self.graphs
        for fence in wait_for:
            self.stream.wait_for(fence)
        with inference_mode(), self.stream.work("execution"):
            if stack is not None:
                name, backbone = stack.name, stack.backbone

                def run(images: Images) -> Features:
                    return launcher.run({name: backbone}, {name: images})[name]

                failed = run_stack(stack, inputs, store_features, run)
            else:
                try:
                    backbones = {model: self._backbones[model] for model in inputs}
                    for model, features in launcher.run(backbones, inputs).items():
                        store_features(model, features)
                except Exception as error:  # there is one launch for all models, so no model has results
                    failed = dict.fromkeys(inputs, error)
        return LaunchedExecution(self.stream.fence(), failed)

    def _run_share(self, share: CoreShare, inputs: Inputs, compute: Compute, failed: dict[str, Exception]) -> None:
        with inference_mode():
            for model in share.models:
                try:
                    self.set_threads(model, share.num_threads)
                    compute(model, self._backbones[model], inputs[model])
                except Exception as error:  # the next models of this share must still run
                    failed[model] = error
