"""Runs what the scheduler decided: several models' batches as one execution.

On a CPU the models share the cores; on a GPU one CUDA graph forks them over streams and joins them. Where the paper
rewrites kernels (PTX) so that one launch does the work of several, this leaves kernels alone: a batch reads a model's
weights once for all its images, which is what merging is for, and the streams of a graph let kernels of several models
run side by side where one does not fill the GPU, with one launch for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from split_infer_ros.runtime.num_threads import max_threads, use_threads
from split_infer_ros.runtime.streams import Fence, Stream
from split_infer_ros.serving.forked_graphs import ForkedGraphs, Forks, Model
from split_infer_ros.serving.lanes import Lane, share_cores

Inputs = Mapping[str, Tensor]  # float (n, 3, h, w) of each model's own size and dtype, on the device
Outputs = dict[str, Sequence[Tensor]]
Leave = Callable[[str, Sequence[Tensor]], object]

GRAPH_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class Launched:
    """An execution that was given to the device.

    Attributes:
        done: from when on all that did not fail is where it was to be left.
        failed: models whose batches are lost, and why; the others' are not.
    """

    done: Fence
    failed: Mapping[str, Exception]


class Engine:
    """The models that are loaded, all on one device. One thread uses it.

    Args:
        device: where they run.
        graph_bytes: memory that recorded combinations may take, on a GPU; None: nothing is recorded, and each kernel
            launched by itself.
        cores: that executions have on a CPU; None: all. Engines of one core each may work side by side.

    Attributes:
        graphs: what is recorded; None where nothing is.
    """

    def __init__(self, device: torch.device, graph_bytes: int | None = GRAPH_BYTES, cores: int | None = None) -> None:
        self._cores = cores or max_threads()
        self._backbones: dict[str, Model] = {}
        self._weights_s: dict[str, float] = {}
        self._helpers = ThreadPoolExecutor(self._cores, "lane")
        self._stream = Stream(device)
        self._forks = Forks(device, self._stream)
        self.graphs: ForkedGraphs | None = None
        if self.is_asynchronous and graph_bytes is not None:
            self.graphs = ForkedGraphs(self._forks, graph_bytes)

    @property
    def is_asynchronous(self) -> bool:
        """True where an execution that was launched may not be done yet."""
        return self._stream.is_asynchronous

    def load(self, backbones: Mapping[str, Model], weights_s: Mapping[str, float]) -> None:
        """Exactly these models from now on.

        Args:
            backbones: by the model's name: (n, 3, h, w) to what crosses its split point.
            weights_s: seconds that an image takes of one core; they decide how cores are shared.
        """
        gone = [name for name, backbone in self._backbones.items() if backbones.get(name) is not backbone]
        if self.graphs is not None:
            self.graphs.forget(gone)
        self._backbones, self._weights_s = dict(backbones), dict(weights_s)

    @torch.inference_mode()
    def prepare(self, inputs: Inputs) -> None:
        """Have that execution recorded, where executions are and there is memory for it; takes a while."""
        if self.graphs is not None:
            with self._stream.work("prepare"):
                self.graphs.prepare({model: self._backbones[model] for model in inputs}, inputs)

    def run(self, inputs: Inputs) -> Outputs:
        """One execution, to its end; what it gives lies, on a GPU, there until these models run again.

        Raises:
            Exception: of a model that failed, once the others are done.
        """
        found: Outputs = {}
        launched = self.launch(inputs, found.__setitem__)
        launched.done.wait()
        for error in launched.failed.values():
            raise error
        return found

    @torch.inference_mode()
    def launch(self, inputs: Inputs, leave: Leave, after: Sequence[Fence] = ()) -> Launched:
        """One execution, which on a GPU may not be done when this returns.

        Args:
            inputs: a batch of each model that takes part; to be kept until it is done.
            leave: called with each model and its features, where they are still there: on a CPU on the thread that
                computed them, on a GPU within the stream in which the execution is.
            after: what the inputs wait for.
        """
        if self._stream.is_asynchronous:
            return self._launch_on_device(inputs, leave, after)
        failed: dict[str, Exception] = {}
        work_s = {model: self._weights_s[model] * len(images) for model, images in inputs.items()}
        lanes = share_cores(work_s, self._cores)
        others = [self._helpers.submit(self._run_lane, lane, inputs, leave, failed) for lane in lanes[1:]]
        self._run_lane(lanes[0], inputs, leave, failed)
        for other in others:
            other.result()
        return Launched(Fence(), failed)

    def _launch_on_device(self, inputs: Inputs, leave: Leave, after: Sequence[Fence]) -> Launched:
        failed: dict[str, Exception] = {}
        backbones = {model: self._backbones[model] for model in inputs}
        for fence in after:
            self._stream.wait_for(fence)
        with self._stream.work("execution"):
            try:
                together = self._forks if self.graphs is None else self.graphs
                for model, outputs in together.run(backbones, inputs).items():
                    leave(model, outputs)
            except Exception as error:  # one launch for all: none of them has its results
                failed = dict.fromkeys(inputs, error)
        return Launched(self._stream.fence(), failed)

    def close(self) -> None:
        """End the threads, and let go of the models."""
        self._helpers.shutdown()
        self._stream.fence().wait()
        self.load({}, {})

    @torch.inference_mode()
    def _run_lane(self, lane: Lane, inputs: Inputs, leave: Leave, failed: dict[str, Exception]) -> None:
        use_threads(lane.cores)
        for model in lane.models:
            try:
                leave(model, self._backbones[model](inputs[model]))
            except Exception as error:  # the others of this lane get their chance
                failed[model] = error
