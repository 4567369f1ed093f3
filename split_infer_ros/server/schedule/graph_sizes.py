"""The batch sizes for which graphs are recorded. A batch of a size in between runs in the next larger graph."""

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
