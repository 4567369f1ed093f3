"""Makes the partitions of a model of torch executable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, fx, nn

from split_infer_ros.buffers.host_arrays import FLOAT32, torch_dtype
from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.engines.execution_config import Convolutions, ExecutionConfig
from split_infer_ros.engines.traced_part import PartChain, make_traced_part
from split_infer_ros.runtime.device import Device
from split_infer_ros.split.convolution_changes import ConvolutionChanges
from split_infer_ros.split.device_weights import DeviceWeights
from split_infer_ros.split.export import copy_to_device
from split_infer_ros.split.partition_cache import Partition
from split_infer_ros.split.split_points import SplitPoint


class PartitionMaker:
    """Makes partitions and segments of one model executable on one device.

    Args:
        changes: how convolutions run in each part of the model.
        config: how everything else runs.
        device: where the parts run.
        name: the model's name, for messages.
    """

    def __init__(self, changes: ConvolutionChanges, config: ExecutionConfig, *, device: Device, name: str) -> None:
        self._changes, self._config, self._device, self._name = changes, config, device, name

    def partition(
        self,
        partition: fx.GraphModule,
        *,
        first: int,
        last: int | None = None,
        inputs: Sequence[TensorSpec],
        weights: DeviceWeights | None = None,
        is_whole: bool = False,
        gives_results: bool = False,
    ) -> Partition:
        """Makes a partition executable.

        Args:
            partition: the nodes from ``first`` up to, not including, ``last``.
            first, last: positions in the model's graph; None is the end of the graph.
            inputs: the specs of the partition's inputs. Only engines other than torch need them.
            weights: receives the weights that the partition then has on the device; None if nobody needs them.
            is_whole: whether the partition is the whole network.
            gives_results: whether the partition's outputs are the model's results.
        """
        parts = [
            self._make(part, kind, inputs, weights, is_whole, gives_results=gives_results)
            for kind, part in self._changes.divide(partition, first=first, last=last)
        ]
        return parts[0] if len(parts) == 1 else PartChain(parts)

    def segments(self, segments: Sequence[fx.GraphModule], split_points: Sequence[SplitPoint]) -> list[Partition]:
        """Makes the segments between neighbouring split points executable."""
        kinds = [self._changes.kind_before(end.position) for end in split_points[1:]]
        return [
            self._make(segment, kind, start.tensors)
            for segment, start, kind in zip(segments, split_points[:-1], kinds, strict=True)
        ]

    def from_float32(self, part: Partition, split_point: SplitPoint) -> Partition:
        """Returns an executable part that takes float32 and gives float32; ``part`` itself if it does so already.

        Args:
            part: an executable part of the model.
            split_point: the split point where the part begins.
        """
        dtype = self._config.boundary_dtype
        if dtype == FLOAT32:
            return part
        return ConvertedPart(part, [torch_dtype(spec.dtype) for spec in split_point.in_precision(dtype).tensors])

    def _make(
        self,
        part: fx.GraphModule,
        kind: Convolutions,
        inputs: Sequence[TensorSpec],
        weights: DeviceWeights | None = None,
        is_whole: bool = False,
        gives_results: bool = False,
    ) -> Partition:
        dtype = self._config.boundary_dtype
        if self._device.type != "cpu" or dtype != FLOAT32:
            part = copy_to_device(part, self._device, torch_dtype(dtype))
        config = replace(self._config, convolutions=kind)
        executable = make_traced_part(
            part,
            config,
            inputs=inputs,
            device=self._device,
            name=self._name,
            is_whole=is_whole,
            gives_results=gives_results,
        )
        if weights is not None:
            weights.add(part, executable)
        return executable


class ConvertedPart(nn.Module):
    """A part that computes in 16 bits, for callers that have float32: converts its inputs and its results.

    Args:
        part: maps tensors to a tuple of tensors.
        dtypes: the dtypes of the part's inputs, in order.
    """

    def __init__(self, part: Partition, dtypes: Sequence[torch.dtype]) -> None:
        super().__init__()
        self._part, self._dtypes = part, tuple(dtypes)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Takes and returns tensors whose floating-point values are float32."""
        inputs = (tensor.to(dtype) for tensor, dtype in zip(tensors, self._dtypes, strict=True))
        return tuple(each.float() if each.is_floating_point() else each for each in self._part(*inputs))
