"""The weights of a backbone on a GPU, for policies under which the CPU keeps no copy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor, nn

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.torch_graphs.module_state import state_of


class DeviceWeights:
    """Weights that a backbone on a GPU reads, by their names in the model.

    Under the policies ``managed`` and ``pinned``, the CPU has no copy of these weights. ``fetch`` reads them back.
    """

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def add(self, part: nn.Module, executable: object) -> None:
        """Adds the weights of a part, except those that its executable form does not read in place.

        Args:
            part: a part of the model on the GPU.
            executable: the executable form of ``part``. It may have copied weights. If it is no torch module, nothing
                is added.
        """
        read = {id(tensor) for tensor in state_of(executable).values()}
        self._tensors |= {name: tensor for name, tensor in state_of(part).items() if id(tensor) in read}

    def equal_in_kind(self, state: Mapping[str, Tensor]) -> list[str]:
        """Returns the names of the weights that ``state`` also holds, with the same shape and dtype.

        Args:
            state: tensors, by their names in the model.
        """
        return [
            name
            for name, tensor in self._tensors.items()
            if name in state and (tensor.shape, tensor.dtype) == (state[name].shape, state[name].dtype)
        ]

    def fetch(self, names: Collection[str]) -> dict[str, Tensor]:
        """Copies the weights of these names to the CPU.

        Raises:
            ConfigurationError: the GPU does not answer.
        """
        try:
            with torch.inference_mode(False):  # the copies are used outside of it as well
                return {name: self._tensors[name].detach().cpu() for name in names}
        except RuntimeError as error:
            raise ConfigurationError(f"The weights cannot be read back from the GPU: {error}") from error


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Returns how many bytes weights take. A tensor that occurs twice is counted once. Stand-ins take no memory."""
    once = {id(tensor): tensor for tensor in tensors}
    # all elements of a stand-in are one number in memory, so all its strides are 0
    return sum(tensor.nbytes for tensor in once.values() if tensor.numel() <= 1 or any(tensor.stride()))
