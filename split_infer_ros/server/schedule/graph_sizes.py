"""The batch sizes for which graphs are recorded and costs are measured.

A batch of a size in between runs in the next larger graph.
"""

from __future__ import annotations

MAX_EXACT = 8  # a batch of one model with up to this many images has a graph of its own size


def padded_size(count: int, num_models: int = 1) -> int:
    """Returns the batch size of the graph that runs ``count`` images of a model.

    A window rarely has more than ``MAX_EXACT`` images of one model, so batches up to this size are not padded. Larger
    batches, and batches in executions of several models, are padded to powers of two. So few graphs serve all of them.

    Args:
        count: number of images of the model, at least 1.
        num_models: number of models in the execution.
    """
    return count if num_models == 1 and count <= MAX_EXACT else 1 << (count - 1).bit_length()


def measured_sizes(max_batch_size: int, *, graphs: bool) -> list[int]:
    """Returns the batch sizes of one model for which costs are measured, in ascending order.

    Args:
        max_batch_size: the largest batch.
        graphs: whether batches run in graphs. If so, the sizes are those of the graphs. If not, they are the powers of
            two and the largest batch.
    """
    if graphs:
        return sorted({padded_size(count) for count in range(1, max_batch_size + 1)})
    sizes = [1]
    while sizes[-1] < max_batch_size:
        sizes.append(min(2 * sizes[-1], max_batch_size))
    return sizes
