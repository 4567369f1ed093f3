"""Runs what the scheduler decided: several models' batches as one execution.

On a CPU the models share the cores; on a GPU one CUDA graph forks them over streams and joins them. Where the paper
rewrites kernels (PTX) so that one launch does the work of several, this leaves kernels alone: a batch reads a model's
weights once for all its images, which is what merging is for, and the streams of a graph let kernels of several models
run side by side where one does not fill the GPU, with one launch for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from split_infer_ros.pipeline.cores import use_cores
from split_infer_ros.pipeline.device import DeviceQueue
from split_infer_ros.split.model import SplitModel
from split_infer_ros.tenancy.forked_graphs import ForkedGraphs
from split_infer_ros.tenancy.lanes import Lane, share_cores

Inputs = Mapping[str, Tensor]  # float (n, 3, h, w) of each model's own size and dtype, on the device
Outputs = dict[str, tuple[Tensor, ...]]


class Engine:
    """The models that are loaded, all on one device. One thread uses it.

    Args:
        models: by name.
        weights_s: seconds that an image takes of one core, by model; they decide how cores are shared.
        graph_bytes: memory that recorded combinations may take, on a GPU.
    """

    def __init__(
        self, models: Mapping[str, SplitModel], weights_s: Mapping[str, float], graph_bytes: int = 2**30
    ) -> None:
        self._models = dict(models)
        self._weights_s = dict(weights_s)
        self._cores = torch.get_num_threads()
        self._helpers = ThreadPoolExecutor(max(1, self._cores), "lane")
        device = next(iter(self._models.values())).device
        self._queue = DeviceQueue(device)
        self._graphs = ForkedGraphs(device, graph_bytes) if device.type == "cuda" else None

    def run(self, inputs: Inputs) -> Outputs:
        """One execution; returns each model's outputs, which on a GPU lie there until these models run again."""
        if self._graphs is not None:
            with self._queue.work("execution"):
                found = self._graphs.run({model: self._models[model].backbone("output") for model in inputs}, inputs)
            self._queue.mark().wait()
            return found
        if len(inputs) == 1:
            return self._run_lane(Lane(tuple(inputs), self._cores), inputs)
        work_s = {model: self._weights_s[model] * len(images) for model, images in inputs.items()}
        return self._run_lanes(share_cores(work_s, self._cores), inputs)

    def _run_lanes(self, lanes: Sequence[Lane], inputs: Inputs) -> Outputs:
        others = [self._helpers.submit(self._run_lane, lane, inputs) for lane in lanes[1:]]
        try:
            found = self._run_lane(lanes[0], inputs)
        finally:
            rest = [other.result() for other in others]
        for outputs in rest:
            found |= outputs
        return found

    def close(self) -> None:
        """End the threads."""
        self._helpers.shutdown()

    @torch.inference_mode()
    def _run_lane(self, lane: Lane, inputs: Inputs) -> Outputs:
        use_cores(lane.cores)
        return {model: tuple(self._models[model].backbone("output")(inputs[model])) for model in lane.models}
