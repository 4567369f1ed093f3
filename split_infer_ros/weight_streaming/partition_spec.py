"""Describes a partition whose weights will be streamed, before it is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, fx

from split_infer_ros.buffers.host_arrays import torch_dtype
from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.runtime.device import CPU
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.split_points import SplitPoint
from split_infer_ros.split.torch_network import TorchNetwork
from split_infer_ros.weight_streaming.packed_partition import PackedPartition, open_packed


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PartitionSpec:
    """A partition of a model. Its weights will be streamed.

    Attributes:
        model: the model to which the partition belongs.
        network: the model's network.
        extract: takes the partition from the model's graph.
        split_point: the split point where the partition ends or begins.
        inputs: the partition's inputs for one image, in the dtypes that it takes in fp32.
        num_threads: number of CPU threads that run the partition; None on a GPU.
        batch_size: the batch size for which its weights are laid out.
    """

    model: SplitModel
    network: TorchNetwork
    extract: Callable[[fx.GraphModule, SplitPoint], fx.GraphModule]
    split_point: SplitPoint
    inputs: tuple[TensorSpec, ...]
    num_threads: int | None
    batch_size: int

    @property
    def graph(self) -> fx.GraphModule:
        """The partition's graph. Stand-ins without memory replace the weights that were released from memory."""
        return self.extract(self.network.graph.module, self.split_point)

    def open_packed(self, path: Path) -> PackedPartition:
        """Finds the partition's weights in a packed file, without reading them.

        The result serves only one streamed partition, because that partition changes the graph in it.
        """
        return open_packed(self.network, self.graph, path, num_threads=self.num_threads)

    def zeros(self, batch_size: int) -> list[Tensor]:
        """Returns the partition's inputs for ``batch_size`` images, (batch_size, ...) each, filled with zeros.

        They lie on the partition's device, those with four dimensions in channels last.
        """
        device = CPU if self.num_threads else self.model.device
        inputs = []
        for spec in self.inputs:
            values = torch.zeros((batch_size, *spec.shape), dtype=torch_dtype(spec.dtype), device=device)
            inputs.append(values.contiguous(memory_format=torch.channels_last) if values.dim() == 4 else values)
        return inputs
