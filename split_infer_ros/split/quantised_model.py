"""A model in int8, as the command ``quantise`` made it of a model in float32."""

from __future__ import annotations

import copy
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
from split_infer_ros.split.graph_model import GraphModel
from split_infer_ros.split.manifest import Manifest
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.quantised_file import LOSS, read_quantised
from split_infer_ros.split.split_points import INPUT, OUTPUT, SplitPoint, parse_split_points, write_split_points

CONFIG = ExecutionConfig(engine=Engine.OPENVINO, precision=Precision.INT8)


class QuantisedModel(GraphModel):
    """A model in int8. OpenVINO runs both partitions on the CPU, and features cross in float32.

    Its split points are the source's. Each partition quantises what it takes. So a backbone and a head give the results
    of the whole up to a step of int8. Either of them fits a partition of the source.

    Args:
        source: the same model in float32.
        graph: the whole model in int8, as ``quantisation`` arranges it.
        manifest: has what an earlier process found out about the graph; None if there was none.
    """

    kind = "quantised"
    native_engine = Engine.OPENVINO
    is_quantised = True

    def __init__(self, source: SplitModel, graph: OnnxGraph, manifest: Manifest | None = None) -> None:
        prepare, manifest = cache(lambda: PreparedGraph.of(graph, source.entry.image_shape)), manifest or Manifest()

        def find_split_points() -> list[dict[str, Any]]:
            return write_split_points(_located(source.split_points, prepare().dataflow))

        split_points = parse_split_points(manifest.find("split points", find_split_points))
        super().__init__(source.entry, prepare, manifest, execution_config=CONFIG, split_points=split_points)
        self._source = source

    def placed(self, device: Device, execution_config: ExecutionConfig | None = None) -> SplitModel:
        """Returns this model, or its source if another precision is wanted.

        Raises:
            ConfigurationError: the device is no CPU, or the engine is not OpenVINO.
        """
        config = execution_config or self.execution_config
        if config.precision is not Precision.INT8:
            return self._source.placed(device, config)
        engine, provider = (Engine.OPENVINO, "") if config == _UNTUNED else (config.engine, config.provider)
        check_precision(Precision.INT8, engine, provider)
        check_device(engine, provider, device)
        other = copy.copy(self)
        other.execution_config = replace(CONFIG, micro_batch=config.micro_batch)
        other._reset_caches()
        return other

    @property
    def default_split_point(self) -> str:
        """The source's default split point, or the last one if the model in int8 does not have it."""
        names = [point.name for point in self.split_points]
        return self._source.default_split_point if self._source.default_split_point in names else names[-1]

    @property
    def note(self) -> str:
        """What a user should know about how the model runs; empty if there is nothing."""
        loss = self._manifest.find("loss", lambda: self.graph.metadata.get(LOSS, ""))
        return " ".join(filter(None, (self._source.note, loss)))

    @property
    def _head_execution_config(self) -> ExecutionConfig:
        return self.execution_config


_UNTUNED = ExecutionConfig(precision=Precision.INT8)  # names no engine


def place(model: SplitModel, device: Device, execution_config: ExecutionConfig) -> SplitModel:
    """Returns a model with its backbone on a device and in an execution config. For int8, it reads the quantised model.

    Raises:
        ConfigurationError: the model cannot run there or in this config, or was not quantised.
    """
    if execution_config.precision is Precision.INT8 and not isinstance(model, QuantisedModel):
        model = QuantisedModel(model, *read_quantised(model))
    return model.placed(device, execution_config)


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
