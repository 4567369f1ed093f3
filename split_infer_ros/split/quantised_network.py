"""A network in int8, as the command ``quantise`` made it of one in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from split_infer_ros.engines.engine import Engine, check_device
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.engines.precision_checks import check_precision
from split_infer_ros.onnx.dataflow import Dataflow
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.prepared_graph import PreparedGraph
from split_infer_ros.runtime.device import Device
from split_infer_ros.split.graph_network import GraphNetwork
from split_infer_ros.split.manifest import Manifest
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.network import Network
from split_infer_ros.split.quantised_file import LOSS, read_quantised
from split_infer_ros.split.split_points import INPUT, OUTPUT, SplitPoint, parse_split_points, write_split_points

CONFIG = ExecutionConfig(engine=Engine.OPENVINO, precision=Precision.INT8)


class QuantisedNetwork(GraphNetwork):
    """A network in int8. OpenVINO runs both partitions on the CPU, and features cross in float32.

    The source is the network in float32 that was quantised. Both have the same split points. Each partition in int8
    takes float32 and quantises it. So backbone and head together give the results of the whole network, up to a step of
    int8. A partition in int8 can also run with the other partition of the source.

    Args:
        source: the network in float32.
        graph: the whole network in int8, as the package ``quantisation`` arranges it.
        manifest: what earlier processes found out about the graph; None if nothing is known.
    """

    kind = "quantised"
    native_engine = Engine.OPENVINO
    is_quantised = True

    def __init__(self, source: Network, graph: OnnxGraph, manifest: Manifest | None = None) -> None:
        prepare, manifest = cache(lambda: PreparedGraph.of(graph, source.entry.image_shape)), manifest or Manifest()

        def find_split_points() -> list[dict[str, Any]]:
            return write_split_points(_located(source.split_points, prepare().dataflow))

        split_points = parse_split_points(manifest.find("split points", find_split_points))
        super().__init__(source.entry, prepare, manifest, split_points)
        self._source = source

    def fit(self, device: Device, config: ExecutionConfig | None) -> tuple[Network, ExecutionConfig]:
        """Returns this network, or its source if another precision is wanted, and the config.

        Raises:
            ConfigurationError: the device is no CPU, or the engine is not OpenVINO.
        """
        config = config or CONFIG
        if config.precision is not Precision.INT8:
            return self._source.fit(device, config)
        engine, provider = (Engine.OPENVINO, "") if config == _UNTUNED else (config.engine, config.provider)
        check_precision(Precision.INT8, engine, provider)
        check_device(engine, provider, device)
        return self, replace(CONFIG, micro_batch=config.micro_batch, threads=config.threads)

    def head_config(self, device: Device, config: ExecutionConfig) -> ExecutionConfig:
        """Returns the backbone's config."""
        return config

    @property
    def default_split_point(self) -> str:
        """The source's default split point, or the last one if the network in int8 does not have it."""
        names = [point.name for point in self.split_points]
        return self._source.default_split_point if self._source.default_split_point in names else names[-1]

    @property
    def note(self) -> str:
        """What a user should know about how the network runs; empty if there is nothing."""
        loss = self._manifest.find("loss", lambda: self.prepared.graph.metadata.get(LOSS, ""))
        return " ".join(filter(None, (self._source.note, loss)))


_UNTUNED = ExecutionConfig(precision=Precision.INT8)  # names no engine


def place(network: Network, device: Device, execution_config: ExecutionConfig) -> SplitModel:
    """Returns the model that runs a network on a device, in an execution config.

    For int8, reads the quantised network from the user's cache.

    Raises:
        ConfigurationError: the network cannot run on the device or in this config, or was not quantised.
    """
    if execution_config.precision is Precision.INT8 and not network.is_quantised:
        network = QuantisedNetwork(network, *read_quantised(network))
    return SplitModel(network, device, execution_config)


def _located(split_points: Sequence[SplitPoint], dataflow: Dataflow) -> tuple[SplitPoint, ...]:
    """Returns the split points with their positions in another graph. Its values have the same names.

    A split point is left out if other values cross there in that graph.
    """
    located = []
    for point in split_points:
        names = [spec.name for spec in point.tensors]
        if point.name == INPUT:
            position = 0
        elif point.name == OUTPUT:
            position = len(dataflow.nodes)
        else:
            position = 1 + max(dataflow.producers.get(name, -1) for name in names)
            if dataflow.live(position) != names:
                continue
        located.append(replace(point, position=position))
    return tuple(located)
