"""A backbone as CUDA graphs: recorded once for each batch size, then launched as a whole.

A network of a hundred small kernels is bound by the time that launching each of them takes; a graph is one launch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from split_infer_ros.runtime.captures import Capture, capture
from split_infer_ros.runtime.streams import Stream

Features = Sequence[Tensor]
Backbone = Callable[[Tensor], Features]


def graph_sizes(batch_size: int) -> list[int]:
    """Batch sizes to record: powers of two and the full batch; a batch between two runs as the larger one."""
    sizes = [1]
    while 2 * sizes[-1] < batch_size:
        sizes.append(2 * sizes[-1])
    return sorted({*sizes, batch_size})


class GraphedBackbone:
    """Runs like the backbone that it was recorded from; used by one thread, on one stream.

    Its results lie in the graphs' own memory, until the next run.

    Args:
        backbone: (N, 3, h, w) to a tuple of (N, ...); its operations depend on no value on the GPU.
        example: (batch_size, 3, h, w) on the device, in the backbone's precision.

    Raises:
        torch.OutOfMemoryError: the device has no room for the graphs.
        CaptureError: the backbone cannot be recorded.
    """

    def __init__(self, backbone: Backbone, example: Tensor) -> None:
        stream = Stream(example.device)  # its own: on the backbone's, frames may be flowing
        pool = torch.cuda.graph_pool_handle()  # of all sizes, as only one runs at a time
        self._input = example.clone(memory_format=torch.preserve_format)
        self._sizes = graph_sizes(len(example))
        self._graphs: dict[int, Capture[Features]] = {}
        for size in reversed(self._sizes):  # the largest first, so that the others fit into its memory
            self._graphs[size] = capture(lambda size=size: backbone(self._input[:size]), stream, pool)  # type: ignore[misc]

    def __call__(self, images: Tensor) -> Features:
        """(n, 3, h, w) to a tuple of (n, ...), n at most the batch size."""
        count = len(images)
        self._input[:count].copy_(images, non_blocking=True)
        graph = self._graphs[self._sizes[bisect_left(self._sizes, count)]]
        graph.launch()
        return tuple(result[:count] for result in graph.results)
