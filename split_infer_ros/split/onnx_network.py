"""The network of an ONNX file."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.engines.engine import Engine, find_provider
from split_infer_ros.engines.executable import make_executable
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision_checks import precisions_of
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.prepared_graph import PreparedGraph
from split_infer_ros.runtime.device import CPU, Device
from split_infer_ros.split.graph_network import TAKES_BATCHES, GraphNetwork
from split_infer_ros.split.manifest import Manifest
from split_infer_ros.split.network import Network
from split_infer_ros.split.onnx_batches import prepare_batches
from split_infer_ros.split.onnx_split_points import find_onnx_split_points
from split_infer_ros.split.split_points import INPUT, OUTPUT, parse_split_points, write_split_points
from split_infer_ros.split.verdict import Verdict

GPU_PROVIDER = "CUDA"  # the provider of ONNX Runtime on a GPU if the user names none


class OnnxNetwork(GraphNetwork):
    """The network of an ONNX file, and its split points. Both partitions run on ONNX Runtime or OpenVINO.

    Images are float32. Features have the dtypes of the file.

    Args:
        entry: the model's ``ModelEntry``.
        graph: the whole model, which takes float32 (N, C, H, W).
        execution_config: how the graph runs while its results for batches are compared; see ``prepare_batches``. If it
            names engine torch, an engine for ONNX models runs the graph; see ``of_onnx``.
        manifest: what earlier processes found out about the model; None if nothing is known.

    Raises:
        ConfigurationError: the model does not take images, does not run, or its results cannot be divided among the
            fixed number of images that it takes.
    """

    kind = "an ONNX model"

    def __init__(
        self,
        entry: ModelEntry,
        graph: OnnxGraph,
        *,
        execution_config: ExecutionConfig | None = None,
        manifest: Manifest | None = None,
    ) -> None:
        if len(graph.inputs) != 1 or len(graph.inputs[0].shape) != 4 or graph.inputs[0].dtype != FLOAT32:
            found = "; ".join(map(str, graph.inputs)) or "none"
            raise ConfigurationError(
                f"{graph.name} has the inputs {found}; a model takes one input, float32 images (N, C, height, width)."
            )
        self.native_engine = _native_engine()
        config = of_onnx(execution_config or ExecutionConfig())
        manifest = manifest or Manifest()

        @cache
        def prepare() -> PreparedGraph:
            make = partial(make_executable, config=replace(config, micro_batch=0))  # whole batches are compared
            verdict = Verdict.on_batches(graph, entry.image_shape, config)
            prepared = prepare_batches(
                graph, entry.image_shape, make, replace(verdict, known=manifest.known(TAKES_BATCHES))
            )
            if not prepared.is_settled:
                manifest.keep_no_more()
            return prepared

        def find_split_points() -> list[dict[str, Any]]:
            prepared = prepare()
            return write_split_points(find_onnx_split_points(prepared.graph, prepared.dataflow, prepared.shapes))

        split_points = parse_split_points(manifest.find("split points", find_split_points))
        super().__init__(entry, prepare, manifest, split_points)

    def fit(self, device: Device, config: ExecutionConfig | None) -> tuple[Network, ExecutionConfig]:
        """Returns this network, and the config for an engine that runs ONNX models on the device."""
        config = of_onnx(config or ExecutionConfig())
        if device.type != "cpu" and config.engine is Engine.ONNXRUNTIME and not config.provider:
            config = replace(config, provider=GPU_PROVIDER)
        return self, config

    def head_config(self, device: Device, config: ExecutionConfig) -> ExecutionConfig:
        """Returns the backbone's config if the backbone runs on a CPU, else the native engine's default config."""
        return config if device.type == "cpu" else of_onnx(ExecutionConfig())

    def best_device(self) -> Device:
        """Returns the first GPU if there is one and ONNX Runtime can use it, else the CPU."""
        if self.native_engine is Engine.ONNXRUNTIME:
            with suppress(ConfigurationError):
                find_provider(Engine.ONNXRUNTIME, GPU_PROVIDER)  # torch is asked only if it is there: most lack it
                return super().best_device()
        return CPU

    @property
    def default_split_point(self) -> str:
        """The split point that the entry names; else of the last two split points, the one where fewer bytes cross.

        Usually, the last split point is ``output``. In a YOLO, fewer bytes cross there: the maps before it have nearly
        twice as many bytes as the final boxes.
        """
        return (
            self.entry.default_split_point or min(self.split_points[-2:], key=lambda point: point.bytes_per_image).name
        )

    @property
    def note(self) -> str:
        """What a user should know about how the network runs; empty if there is nothing."""
        notes = [*self.entry.notes, self._manifest.find("note", lambda: self.prepared.note)]
        names = [split_point.name for split_point in self.split_points]
        if names == [INPUT, OUTPUT]:
            notes.append(
                f"{self.entry.name} has no split point but its ends, so the backbone or the head runs it as a whole."
            )
        elif names == [INPUT]:
            notes.append(f"{self.entry.name} has no split point but its input, so the head runs it as a whole.")
        return " ".join(filter(None, notes))


def _native_engine() -> Engine:
    """Returns the installed engine that runs ONNX models; ONNX Runtime if both or none are installed."""
    has_only_openvino = Engine.OPENVINO.is_installed and not Engine.ONNXRUNTIME.is_installed
    return Engine.OPENVINO if has_only_openvino else Engine.ONNXRUNTIME


def of_onnx(config: ExecutionConfig) -> ExecutionConfig:
    """Returns the config with which an ONNX model runs: ``config`` itself, unless it names engine torch.

    For engine torch, returns the default config of an engine that runs ONNX models, in the same precision.
    """
    if config.engine is not Engine.TORCH:
        return config
    engine = _native_engine()
    if config.precision not in precisions_of(engine, "", is_file=True):
        engine = Engine.OPENVINO
    return ExecutionConfig(engine=engine, precision=config.precision, threads=config.threads)
