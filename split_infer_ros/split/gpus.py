"""How many GPUs there are for models."""

from __future__ import annotations


def num_gpus() -> int:
    """Returns the number of GPUs that torch can use, which imports torch: weights and features on a GPU are its own."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
