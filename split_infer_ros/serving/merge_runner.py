"""Runs what the scheduler decided: the batches of several models as one execution.

On a CPU, the models share the cores. On a GPU, one CUDA graph forks the models over streams and joins them.

The paper rewrites kernels (PTX) so that one launch does the work of several. Here, kernels stay as they are. Merging
reads a model's weights once for all images of a batch, and one graph launches the kernels of all models. Where one
model does not fill the GPU, kernels of several models run concurrently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from split_infer_ros.runtime.num_threads import max_threads, use_threads
from split_infer_ros.runtime.streams import Fence, Stream
from split_infer_ros.serving.core_sharing import CoreShare, share_cores
from split_infer_ros.serving.forked_graphs import ForkedGraphs
from split_infer_ros.serving.model_streams import Backbone, ModelStreams

Inputs = Mapping[str, Tensor]  # float (n, 3, h, w) of each model's own size and dtype, on the device
Outputs = dict[str, Sequence[Tensor]]
StoreFeatures = Callable[[str, Sequence[Tensor]], object]
Compute = Callable[[str, Backbone, Tensor], object]

GRAPH_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class LaunchedExecution:
    """An execution that was given to the device.

    Attributes:
        done: reached once all features are stored, except those of models that failed.
        failed: the models whose batches are lost, and why.
    """

    done: Fence
    failed: Mapping[str, Exception]


class MergeRunner:
    """Runs the loaded models, all on one device; one thread uses it.

    Args:
        device: where the models run.
        graph_bytes: the GPU memory that recorded graphs may take. With None nothing is recorded, and each kernel is
            launched by itself.
        num_threads: of an execution on a CPU; None for all cores. Runners of one thread each may work concurrently.

    Attributes:
        graphs: the recorded graphs; None if nothing is recorded.
    """

    def __init__(
        self, device: torch.device, graph_bytes: int | None = GRAPH_BYTES, num_threads: int | None = None
    ) -> None:
        self._num_threads = num_threads or max_threads()
        self._backbones: dict[str, Backbone] = {}
        self._image_s: dict[str, float] = {}
        self._threads = ThreadPoolExecutor(self._num_threads, "core share")
        self._stream = Stream(device)
        self._model_streams = ModelStreams(device, self._stream)
        self.graphs: ForkedGraphs | None = None
        if self.is_asynchronous and graph_bytes is not None:
            self.graphs = ForkedGraphs(self._model_streams, graph_bytes)

    @property
    def is_asynchronous(self) -> bool:
        """True if an execution may still run when ``launch`` returns."""
        return self._stream.is_asynchronous

    def load(self, backbones: Mapping[str, Backbone], image_s: Mapping[str, float]) -> None:
        """Replaces the models by exactly these.

        Args:
            backbones: by the model's name; each maps (n, 3, h, w) to the features at its split point.
            image_s: the seconds that an image of each model takes on one core. They decide how models share cores.
        """
        removed = [name for name, backbone in self._backbones.items() if backbones.get(name) is not backbone]
        if self.graphs is not None:
            self.graphs.remove_models(removed)
        self._backbones, self._image_s = dict(backbones), dict(image_s)

    @torch.inference_mode()
    def prepare(self, inputs: Inputs) -> None:
        """Records the execution, if executions are recorded and there is memory for it; takes tenths of a second."""
        if self.graphs is not None:
            with self._stream.work("prepare"):
                self.graphs.prepare({model: self._backbones[model] for model in inputs}, inputs)

    def run(self, inputs: Inputs) -> Outputs:
        """Runs one execution to its end.

        On a GPU, the results stay valid until these models run again.

        Raises:
            Exception: what a model raised, once the others are done.
        """
        outputs: Outputs = {}
        launched = self.launch(inputs, outputs.__setitem__)
        launched.done.wait()
        for error in launched.failed.values():
            raise error
        return outputs

    @torch.inference_mode()
    def launch(
        self,
        inputs: Inputs,
        store_features: StoreFeatures,
        wait_for: Sequence[Fence] = (),
        compute: Compute | None = None,
    ) -> LaunchedExecution:
        """Launches one execution. On a CPU it is done when this returns; on a GPU it may still run.

        Args:
            inputs: a batch of each model that takes part; the caller keeps them until the execution is done.
            store_features: called with each model and its features while they are valid. On a CPU it is called on the
                thread that computed them, and on a GPU within the execution's stream.
            wait_for: fences of the work that writes the inputs.
            compute: called on a CPU instead, with each model, its backbone and its images. It runs the backbone and
                stores the features, which saves a copy where the backbone can write them to their place itself.
        """
        if self._stream.is_asynchronous:
            return self._launch_on_gpu(inputs, store_features, wait_for)
        failed: dict[str, Exception] = {}
        work_s = {model: self._image_s[model] * len(images) for model, images in inputs.items()}
        first, *others = share_cores(work_s, self._num_threads)

        def store(model: str, backbone: Backbone, images: Tensor) -> None:
            store_features(model, backbone(images))

        running = [self._threads.submit(self._run_share, share, inputs, compute or store, failed) for share in others]
        self._run_share(first, inputs, compute or store, failed)
        for share in running:
            share.result()
        return LaunchedExecution(Fence(), failed)

    def close(self) -> None:
        """Ends the threads, and releases the models."""
        self._threads.shutdown()
        self._stream.fence().wait()
        self.load({}, {})

    def _launch_on_gpu(
        self, inputs: Inputs, store_features: StoreFeatures, wait_for: Sequence[Fence]
    ) -> LaunchedExecution:
        failed: dict[str, Exception] = {}
        backbones = {model: self._backbones[model] for model in inputs}
        for fence in wait_for:
            self._stream.wait_for(fence)
        with self._stream.work("execution"):
            try:
                launcher = self._model_streams if self.graphs is None else self.graphs
                for model, features in launcher.run(backbones, inputs).items():
                    store_features(model, features)
            except Exception as error:  # one launch for all: no model has its results
                failed = dict.fromkeys(inputs, error)
        return LaunchedExecution(self._stream.fence(), failed)

    @torch.inference_mode()
    def _run_share(self, share: CoreShare, inputs: Inputs, compute: Compute, failed: dict[str, Exception]) -> None:
        use_threads(share.num_threads)
        for model in share.models:
            try:
                compute(model, self._backbones[model], inputs[model])
            except Exception as error:  # the next models of this share still run
                failed[model] = error
