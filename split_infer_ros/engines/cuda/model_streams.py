"""Gives each model on a GPU a stream, so that models run concurrently: kernel by kernel, or as one graph."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeVar

from split_infer_ros.buffers.host_arrays import as_tensor, copy_into
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.engines.compute import Backbone, Features, Images
from split_infer_ros.engines.cuda.model_memory import PooledBackbone
from split_infer_ros.runtime.captures import Capture, capture
from split_infer_ros.runtime.cuda import OutOfMemory
from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.shortage import summarize_error
from split_infer_ros.runtime.streams import Stream

ROUNDS = 7  # launches of each of two graphs, of which the faster one is kept

Results = TypeVar("Results")

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecordedGraph:
    """The graph of one combination of models and batch sizes.

    Attributes:
        inputs: for each model, the memory for its images. The images must be there before a launch.
        outputs: for each model, its results. They are valid from one launch to the next.
        launch: runs the graph.
        bytes: bytes of GPU memory that the graph keeps.
    """

    inputs: Mapping[str, Images]
    outputs: Mapping[str, Features]
    launch: Callable[[], None]
    bytes: int

    def run(self, inputs: Mapping[str, Images]) -> dict[str, Features]:
        """Copies a batch for each model into ``inputs``, and launches the graph in the current stream.

        No batch may be larger than the one with which its model was recorded.

        Returns:
            For each model, views of its outputs for the given images.
        """
        for model, images in inputs.items():
            copy_into(self.inputs[model][: len(images)], images)
        self.launch()
        return {
            model: tuple(output[: len(inputs[model])] for output in outputs) for model, outputs in self.outputs.items()
        }


class ModelStreams:
    """Runs models concurrently, each in a stream of its own.

    The models' streams begin after the work of one common stream, which then waits for all of them. A model keeps its
    stream as long as it is loaded. cuBLAS has one workspace for each stream, and graphs keep using that workspace. If
    the graphs of two models were recorded on one stream, they would overwrite each other's values.

    Args:
        device: a GPU. On a CPU, models run one after the other.
        stream: the common stream.
    """

    def __init__(self, device: Device, stream: Stream) -> None:
        self._device = device
        self._stream = stream
        self._streams: dict[str, Stream] = {}

    def wait(self) -> None:
        """Waits until all work in the common stream is done."""
        self._stream.fence().wait()

    def holds(self, images: Images) -> bool:
        """Returns whether images lie in the device's memory. A graph computes nothing of what lies elsewhere."""
        return as_tensor(images).device.type == self._device.type

    def remove_models(self, models: Collection[str]) -> None:
        """Gives up the streams of these models, which other work then reuses. No graph may use the models any more."""
        for model in models:
            self._streams.pop(model, None)

    def run(self, models: Mapping[str, Backbone], inputs: Mapping[str, Images]) -> dict[str, Features]:
        """Runs each model on its batch, concurrently and kernel by kernel. Call it inside the common stream's ``work``.

        Only later runs of these models reuse the memory of freed results. Such a run begins after the work that the
        common stream has on the results.

        Returns:
            The features of each model, by its name.
        """
        outputs, ends = {}, []
        for name, model in models.items():
            if name not in self._streams:
                self._streams[name] = Stream(self._device)
            stream = self._streams[name]
            with stream.work(name):
                outputs[name] = model(inputs[name])
            ends.append(stream.fence())
        for end in ends:  # after the loop: a model that forked after another's end would not run beside it
            self._stream.wait_for(end)
        return outputs

    def record(self, models: Mapping[str, Backbone], examples: Mapping[str, Images]) -> RecordedGraph:
        """Records the concurrent execution of models as one graph with its own memory.

        If all models have the same memory policy, the graph's memory is of that policy. Two models whose layers can be
        fused are also recorded as one stream of fused kernels (001, Algorithm 2). The faster graph is kept.

        Args:
            models: the models, by name.
            examples: for each model, a batch of the size to record.

        Raises:
            OutOfMemory: the device has no room for the graph.
            CaptureError: a model cannot be recorded.
        """
        pools = {name: model.pool for name, model in models.items() if isinstance(model, PooledBackbone)}
        plain = {name: model.inner if isinstance(model, PooledBackbone) else model for name, model in models.items()}
        policies = {pools[name].policy if name in pools else Policy.DEVICE for name in models}
        import torch  # only here: only torch records graphs

        from split_infer_ros.engines.fused_graphs import fuse_backbones

        def record(run: Callable[[], dict[str, Features]]) -> Capture[dict[str, Features]]:
            has_policy = pools and len(policies) == 1
            return capture(run, self._stream, next(iter(pools.values())).graph_pool() if has_policy else None)

        inputs: dict[str, Images] = {}
        try:
            with torch.inference_mode(), self._stream.work("record"):
                for name, example in examples.items():
                    with pools[name].allocating() if name in pools else nullcontext():
                        inputs[name] = as_tensor(example).clone(memory_format=torch.channels_last)
                recorded = record(lambda: self.run(plain, inputs))
                try:
                    fused = fuse_backbones(plain, inputs)
                    if fused is not None:
                        recorded = fastest([recorded, record(fused)], self._stream)
                except Exception as error:  # whatever it is, the forked graph is there
                    _LOG.warning(
                        "%s are not fused (%s: %s).", " and ".join(models), type(error).__name__, summarize_error(error)
                    )
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(f"There is no room for the graph ({summarize_error(error)}).") from error
        return RecordedGraph(inputs, recorded.results, recorded.launch, recorded.bytes)


def fastest(recorded: Sequence[Capture[Results]], stream: Stream) -> Capture[Results]:
    """Returns the recorded work that takes the least time, by the median of ``ROUNDS`` launches of each in turns."""
    seconds: list[list[float]] = [[] for _ in recorded]
    for _ in range(ROUNDS):
        for work, spent in zip(recorded, seconds, strict=True):
            begin = time.perf_counter()
            work.launch()
            stream.fence().wait()
            spent.append(time.perf_counter() - begin)
    medians = list(map(statistics.median, seconds))
    return recorded[medians.index(min(medians))]


def blank_like(images: Images, count: int) -> Images:
    """Returns ``count`` black images with the size, dtype and device of ``images``."""
    return as_tensor(images).new_zeros((count, *images.shape[1:]))
