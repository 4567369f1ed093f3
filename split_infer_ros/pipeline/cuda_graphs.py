"""A backbone as CUDA graphs: recorded once for each batch size, then launched as a whole.

In a network of a hundred small kernels, launching them takes most of the time. A graph needs only one launch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from split_infer_ros.runtime.captures import Capture, capture
from split_infer_ros.runtime.streams import Stream

Features = Sequence[Tensor]
Backbone = Callable[[Tensor], Features]


def graph_sizes(batch_size: int) -> list[int]:
    """Returns the batch sizes to record: the powers of two below ``batch_size``, and ``batch_size`` itself.

    A batch of another size runs as the next larger one.
    """
    sizes = [1]
    while 2 * sizes[-1] < batch_size:
        sizes.append(2 * sizes[-1])
    return sorted({*sizes, batch_size})


class GraphedBackbone:
    """Runs like the backbone from which it was recorded. One thread may use it, on one stream.

    ``record`` creates one. Results lie in the graphs' memory and stay valid until the next run.

    Args:
        graphs: the recorded graphs by batch size.
        static_input: (batch_size, 3, h, w), the memory from which the graphs read their images.
    """

    def __init__(self, graphs: Mapping[int, Capture[Features]], static_input: Tensor) -> None:
        self._graphs = graphs
        self._sizes = sorted(graphs)
        self._input = static_input

    @classmethod
    def record(cls, backbone: Backbone, example: Tensor) -> GraphedBackbone:
        """Records a backbone for each of ``graph_sizes``.

        Args:
            backbone: (N, 3, h, w) to a tuple of (N, ...). Its operations depend on no value on the GPU.
            example: (batch_size, 3, h, w) on the device, in the backbone's precision.

        Raises:
            torch.OutOfMemoryError: the device has no room for the graphs.
            CaptureError: the backbone cannot be recorded.
        """
        static_input = example.clone(memory_format=torch.preserve_format)
        stream = Stream(example.device)  # one of its own, because frames may be flowing on the backbone's stream
        pool = torch.cuda.graph_pool_handle()  # shared by all sizes, because only one of them runs at a time
        graphs: dict[int, Capture[Features]] = {}
        for size in reversed(graph_sizes(len(example))):  # the largest first, so that the others fit into its memory
            graphs[size] = capture(partial(backbone, static_input[:size]), stream, pool)
        return cls(graphs, static_input)

    def __call__(self, images: Tensor) -> Features:
        """Maps (n, 3, h, w) to a tuple of (n, ...), where n is at most the batch size."""
        count = len(images)
        self._input[:count].copy_(images, non_blocking=True)
        graph = self._graphs[self._sizes[bisect_left(self._sizes, count)]]
        graph.launch()
        return tuple(result[:count] for result in graph.results)
