"""A network of torch that can be traced for single batch sizes only. It is traced again for each size that occurs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor, nn

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.memory_cost.traffic import KernelTraffic
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.runtime.device import Device
from split_infer_ros.split.export import UntraceableError
from split_infer_ros.split.network import Network
from split_infer_ros.split.partition_cache import Partition
from split_infer_ros.split.split_points import SplitPoint
from split_infer_ros.split.torch_network import TorchNetwork

REFERENCE = 2  # images; the graph for two images shows where the batch is

MakePart = Callable[[TorchNetwork], Partition]
"""Makes a part of a network that was traced for one batch size."""


class SizedNetwork(Network):
    """The network of a module with a forward that branches on the batch size, or writes it into constants.

    Its split points are those of the graph for two images. If the graph for a batch size has other split points,
    batches of that size run in pairs of images. Tracing takes seconds, so the pipeline warms up with every size.

    Args:
        entry: the model's ``ModelEntry``.
        module: the model with its weights. The network changes it, so nothing else may use it.
        folding: as for ``TorchNetwork``.

    Raises:
        UntraceableError: the module cannot be traced for two images.
    """

    kind = "traced for each batch size"
    has_one_graph = False

    def __init__(self, entry: ModelEntry, module: nn.Module, *, folding: bool = True) -> None:
        self._trace = partial(TorchNetwork, entry, module, folding=folding)
        self._reference = self._trace(batch_size=REFERENCE)
        # By batch size; None if it must run in pairs.
        self._sized: dict[int, TorchNetwork | None] = {REFERENCE: self._reference}
        super().__init__(entry, self._reference.split_points, threading.RLock())

    def fit(self, device: Device, config: ExecutionConfig | None) -> tuple[Network, ExecutionConfig]:
        """Returns this network and the config, with the network's own folding.

        Raises:
            ConfigurationError: the engine is not torch.
        """
        _, config = self._reference.fit(device, config)
        if config.engine is not Engine.TORCH:
            raise ConfigurationError(
                f"{self.entry.name} is traced for each batch size, so engine {config.engine.value} cannot take it: "
                "take engine torch, or a model whose forward does not depend on the number of images."
            )
        return self, config

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that identify the operations for two images."""
        return self._reference.fingerprint

    def num_parameters(self, before: str | None = None) -> int:
        """Returns the number of parameters of the network, or only of the backbone for split point ``before``."""
        return self._reference.num_parameters(before)

    def kernels_before(self, split_point: SplitPoint, config: ExecutionConfig) -> tuple[KernelTraffic, ...]:
        """Returns the kernels of the partition before a split point for two images, in order."""
        return self._reference.kernels_before(split_point, config)

    def head_config(self, device: Device, config: ExecutionConfig) -> ExecutionConfig:
        """Returns how the heads for all sizes run."""
        return self._reference.head_config(device, config)

    @property
    def note(self) -> str:
        """What a user should know about how the network runs."""
        return (
            f"{self.entry.name} can be traced for single batch sizes only, so it is traced for each size at the start, "
            "which takes seconds a size."
        )

    def for_size(self, batch_size: int) -> TorchNetwork | None:
        """Returns the network for a batch size; None if its split points are not those of the graph for two images."""
        with self.lock:
            if batch_size not in self._sized:
                self._sized[batch_size] = self._traced(batch_size)
            return self._sized[batch_size]

    def _traced(self, batch_size: int) -> TorchNetwork | None:
        try:
            with torch.inference_mode(False), torch.no_grad():  # a size may occur first while frames are computed
                network = self._trace(batch_size=batch_size)
        except UntraceableError:
            return None
        own = {point.name: point for point in network.split_points}
        network.split_points = tuple(own[point.name] for point in self.split_points if point.name in own)
        return network if _crossing(network.split_points) == _crossing(self.split_points) else None

    def backbone(
        self, split_point: SplitPoint, config: ExecutionConfig, device: Device, *, keeps_copy: bool = True
    ) -> Partition:
        """Makes the partition before a split point.

        The CPU keeps its copy of the weights, whatever ``keeps_copy`` says, because all batch sizes share it.
        """

        def make(network: TorchNetwork) -> Partition:
            return network.backbone(network.split_point(split_point.name), config, device)

        return _SizedPart(self, make)

    def head(self, split_point: SplitPoint, config: ExecutionConfig) -> Partition:
        """Makes the partition behind a split point."""
        return _SizedPart(self, lambda network: network.head(network.split_point(split_point.name), config))

    def segments(
        self, config: ExecutionConfig, device: Device, *, takes_float32: bool = False
    ) -> tuple[Partition, ...]:
        """Makes the segments between neighbouring split points."""

        @cache
        def segments(network: TorchNetwork) -> tuple[Partition, ...]:
            return network.segments(config, device, takes_float32=takes_float32)

        def make(index: int, network: TorchNetwork) -> Partition:
            return segments(network)[index]

        return tuple(_SizedPart(self, partial(make, index)) for index in range(len(self.split_points) - 1))


class _SizedPart(nn.Module):
    """A part that is made for each batch size when it first runs."""

    def __init__(self, network: SizedNetwork, make: MakePart) -> None:
        super().__init__()
        self._network, self._make = network, make
        self._made: dict[int, Partition | None] = {}

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Maps tensors (n, ...) to a tuple of tensors (n, ...)."""
        size = len(tensors[0])
        if size not in self._made:
            network = self._network.for_size(size)
            with self._network.lock:
                self._made[size] = None if network is None else self._make(network)
        part = self._made[size]
        return tuple(part(*tensors)) if part is not None else self._in_pairs(tensors)

    def _in_pairs(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Runs two images at a time. The last one runs twice if it has no partner."""
        size = len(tensors[0])
        runs = []
        for first in range(0, size, REFERENCE):
            rows = torch.arange(first, first + REFERENCE, device=tensors[0].device).clamp(max=size - 1)
            runs.append(self(*(tensor[rows] for tensor in tensors)))
        return tuple(torch.cat(results)[:size] for results in zip(*runs, strict=True))


def _crossing(split_points: Sequence[SplitPoint]) -> list[object]:
    """Returns what must be equal for two graphs to have the same split points."""
    return [(point.name, [(spec.shape, spec.dtype) for spec in point.tensors]) for point in split_points]
