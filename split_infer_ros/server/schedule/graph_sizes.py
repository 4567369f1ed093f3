"""The batch sizes for which graphs are recorded. A batch between two of them runs in the next larger graph."""

from __future__ import annotations

MAX_EXACT = 8  # images; a batch of one model that is not larger has a graph of its own size


def padded_size(count: int, num_models: int = 1) -> int:
    """Returns the batch size of the graph that runs ``count`` images of a model.

    A window rarely has more than ``MAX_EXACT`` images of one model, so these batches are not padded. Larger ones, and
    those of executions of several models, are padded to powers of two. So few graphs serve all of them.

    Args:
        count: images of the model, at least 1.
        num_models: how many models the execution has.
    """
    return count if num_models == 1 and count <= MAX_EXACT else 1 << (count - 1).bit_length()
