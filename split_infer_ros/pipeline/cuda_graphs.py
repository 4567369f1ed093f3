"""A backbone as CUDA graphs: recorded once for each batch size, then launched as a whole.

A network of a hundred small kernels is bound by the time that launching each of them takes; a graph is one launch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Features = Sequence[Tensor]
Backbone = Callable[[Tensor], Features]
Record = Callable[[Callable[[], Features]], tuple[Callable[[], None], Features]]

WARM_UPS = 3  # the first runs choose kernels and allocate, which must not be recorded


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
        record: for tests.
    """

    def __init__(self, backbone: Backbone, example: Tensor, record: Record | None = None) -> None:
        self._input = example.clone(memory_format=torch.preserve_format)
        self._sizes = graph_sizes(len(example))
        record = record or _Recorder()
        self._graphs: dict[int, tuple[Callable[[], None], Features]] = {}
        for size in reversed(self._sizes):  # the largest first, so that the others fit into its memory
            self._graphs[size] = record(lambda size=size: backbone(self._input[:size]))  # type: ignore[misc]

    def __call__(self, images: Tensor) -> Features:
        """(n, 3, h, w) to a tuple of (n, ...), n at most the batch size."""
        count = len(images)
        self._input[:count].copy_(images, non_blocking=True)
        replay, results = self._graphs[self._sizes[bisect_left(self._sizes, count)]]
        replay()
        return tuple(result[:count] for result in results)


class _Recorder:
    """Records on the current stream; all graphs share their memory, as only one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Features]) -> tuple[Callable[[], None], Features]:
        for _ in range(WARM_UPS):
            run()
        graph = torch.cuda.CUDAGraph()
        # thread_local: what other threads do with the GPU meanwhile is no error
        with torch.cuda.graph(
            graph, pool=self._pool, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"
        ):
            results = run()
        return graph.replay, results
