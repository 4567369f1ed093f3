"""A part that OpenVINO executes on the CPU, on torch's memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from split_infer_ros.engines.engine import Engine, import_for
from split_infer_ros.engines.engine_part import EnginePart, PerThreadCount
from split_infer_ros.engines.model_source import model_source
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx_graphs.graph import OnnxGraph
from split_infer_ros.runtime.num_threads import engine_threads

MAX_STATIC = 3  # batch sizes that have a compiled model of their own: a single image, a full batch, and one more

Shapes = tuple[torch.Size, ...]

_NO_CAUSE = ("Exception from", "Check '", "FrontEnd API failed", "While validating")


class OpenVinoPart(EnginePart):
    """A part that OpenVINO executes in float32 with as many threads as ``engine_threads`` says.

    A model that is compiled for one batch size is about a tenth faster than one for all batch sizes (MobileNetV2 on
    two cores: 2.6 and 3.0 ms for one image, 9.2 and 9.9 ms for four). So for each number of threads, the first
    ``MAX_STATIC`` batch sizes get a compiled model each, and all others share one.

    Args:
        graph: what is executed.

    Raises:
        ConfigurationError: OpenVINO is not installed, or cannot read the graph.
    """

    def __init__(self, graph: OnnxGraph) -> None:
        super().__init__(graph)
        self._runtime: Any = import_for(Engine.OPENVINO, "openvino")
        for tensor in (*graph.inputs, *graph.outputs):
            if tensor.dtype == torch.bfloat16:
                raise ConfigurationError(
                    f"OpenVINO cannot run {graph.name}: {tensor} cannot be shared with torch. Take engine torch."
                )
        self._core = self._runtime.Core()
        self._compiled: PerThreadCount[_CompiledModels] = PerThreadCount()
        self._making = threading.Lock()

    def _run(self, outputs: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        model = self._model(engine_threads(), tuple(tensor.shape for tensor in tensors))
        request = model.take_request()
        try:
            for index, tensor in enumerate(tensors):
                request.set_input_tensor(index, self._shared(tensor))
            for index, output in enumerate(outputs):
                if output is not None:
                    request.set_output_tensor(index, self._shared(output))
            request.infer()
            return tuple(
                torch.from_numpy(request.get_output_tensor(index).data.copy()) if output is None else output
                for index, output in enumerate(outputs)
            )
        finally:
            model.give_back(request)

    def _shared(self, tensor: Tensor) -> Any:
        return self._runtime.Tensor(tensor.numpy(), shared_memory=True)

    def _model(self, num_threads: int, shapes: Shapes) -> _CompiledModel:
        with self._making:
            models = self._compiled.find(num_threads)
            if models is None:
                models = _CompiledModels(num_threads)
                self._compiled.keep(num_threads, models)
            found = models.static.get(shapes)
            if found is None and len(models.static) < MAX_STATIC:
                found = models.static[shapes] = self._compile(models.num_threads, shapes)
            elif found is None:
                models.dynamic = models.dynamic or self._compile(models.num_threads, None)
                found = models.dynamic
            return found

    def _compile(self, num_threads: int, shapes: Shapes | None) -> _CompiledModel:
        """Compiles the graph for inputs of these shapes, or for any batch size."""
        properties = {
            "INFERENCE_PRECISION_HINT": "f32",  # by default it computes in bf16 where the processor can
            "INFERENCE_NUM_THREADS": num_threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_CPU_PINNING": False,  # the other stage's threads may be on those cores
        }
        try:
            with model_source(self.graph) as source:
                model = (
                    self._core.read_model(source, b"") if isinstance(source, bytes) else self._core.read_model(source)
                )
                if shapes is not None:
                    model.reshape(dict(zip(model.inputs, map(list, shapes), strict=True)))
                compiled = self._core.compile_model(model, "CPU", properties)
        except Exception as error:  # OpenVINO raises RuntimeError and others
            raise ConfigurationError(f"OpenVINO cannot run {self.graph.name}: {_reason(error)}") from error
        return _CompiledModel(compiled)


class _CompiledModel:
    """A compiled model and its idle requests. Each request serves one call at a time."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._idle: deque[Any] = deque()

    def take_request(self) -> Any:
        try:
            return self._idle.pop()
        except IndexError:
            return self._compiled.create_infer_request()

    def give_back(self, request: Any) -> None:
        self._idle.append(request)


class _CompiledModels:
    """The compiled models for one number of threads: by the shapes of the inputs, and one for all shapes."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self.static: dict[Shapes, _CompiledModel] = {}
        self.dynamic: _CompiledModel | None = None


def _reason(error: Exception) -> str:
    """Returns the first line of OpenVINO's message, or of its summary, that names a cause and not a place in code."""
    lines = [line.strip(" -") for line in str(error).partition("Summary:")[2].splitlines() or str(error).splitlines()]
    causes = [line for line in lines if line and not line.startswith(_NO_CAUSE)]
    return causes[0] if causes else type(error).__name__
