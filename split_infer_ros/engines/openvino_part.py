"""A part that OpenVINO executes on one of its devices, in the caller's memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from split_infer_ros.buffers.host_arrays import FLOAT32, Values, as_array, is_bfloat16, unlocked
from split_infer_ros.engines.compiled_blobs import CompiledBlob
from split_infer_ros.engines.engine import CPU, Engine, find_provider, import_for
from split_infer_ros.engines.engine_part import EnginePart, PerThreadCount
from split_infer_ros.engines.openvino_device import taken_properties
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.pixel_input import PixelInput
from split_infer_ros.onnx.graph import OnnxGraph, OnnxTensor
from split_infer_ros.onnx.model_source import approximate_weight_bytes, model_source
from split_infer_ros.onnx.quantised_operators import with_plain_operators
from split_infer_ros.runtime.heap import trim
from split_infer_ros.runtime.num_threads import engine_lanes, engine_threads

# In int8, the graph says which values are quantised. The rest is float32.
HINTS = {Precision.FP32: "f32", Precision.FP16: "f16", Precision.BF16: "bf16", Precision.INT8: "f32"}
# OpenVINO 2026.4 fuses consecutive matrix products of int8, and compiles them for one batch size. With one thread, and
# with two for some sizes, the results are arbitrary numbers. Without its code generator, it does not fuse them.
# Networks of convolutions keep the code generator, because they would run 7 % slower.
WITHOUT_FUSED_PRODUCTS = {"SNIPPETS_MODE": "DISABLE"}
PRODUCTS = ("MatMul", "Gemm")
# By default, OpenVINO computes on whole numbers where a user's file is quantised. OpenVINO 2026.4 then joins scales
# with their neighbours. Some int8 networks are 60 % off, and parts of a network round in other places than the whole.
QUANTISING = ("QLinear", "QGemm", "QuantizeLinear", "DequantizeLinear")  # begin the names of such operators
WITHOUT_LOW_PRECISION = {"LP_TRANSFORMS_MODE": False}
MAX_STATIC = 3  # batch sizes with a separate compiled model: those that come first
# For each number of threads and lanes, a second and a third batch size get a compiled model only while the weights of
# these models have fewer bytes together. The model for all other sizes is not counted. A compiled model takes twice its
# weights: 1.1 GB for VGG-16.
STATIC_BYTES = 192 << 20

Shapes = tuple[tuple[int, ...], ...]

_NO_CAUSE = ("Exception from", "Check '", "FrontEnd API failed", "While validating")


class OpenVinoPart(EnginePart):
    """A part that OpenVINO executes with as many threads as ``engine_threads`` says.

    Inputs and results have the graph's dtypes in every precision. With ``pixels``, the part takes images that it
    normalises itself.

    If ``engine_lanes`` says that several threads call the part at the same time, each thread gets its own OpenVINO
    stream.

    A model that is compiled for one batch size is about a tenth faster than one for all batch sizes (MobileNetV2 on
    two cores: 2.6 and 3.0 ms for one image, 9.2 and 9.9 ms for four). Therefore, for each number of threads, the first
    ``MAX_STATIC`` batch sizes get a compiled model each, and all others share one. If the weights are so large that
    these models would have more than ``STATIC_BYTES``, fewer sizes get one. On other devices than the CPU, each batch
    size gets a compiled model, because some devices cannot compile a model for all sizes.

    Args:
        graph: the graph to execute.
        precision: the precision in which OpenVINO computes; see ``check_precision``.
        pixels: the form of the images that the part normalises; None if the part takes the graph's inputs.
        provider: the device, as ``parse_engine`` returns it; empty for the CPU.

    Raises:
        ConfigurationError: OpenVINO is not installed, has no such device, or cannot read the graph.
    """

    def __init__(
        self,
        graph: OnnxGraph,
        precision: Precision = Precision.FP32,
        pixels: PixelInput | None = None,
        provider: str = "",
    ) -> None:
        super().__init__(graph)
        self._precision, self._pixels, self._provider = precision, pixels, provider
        if pixels is not None:
            (images,) = graph.inputs
            batch, channels, height, width = images.shape
            self.inputs = (OnnxTensor(images.name, (batch, height, width, channels), pixels.dtype),)
        self._for_pixels: dict[PixelInput, OpenVinoPart] = {}
        self._hint = HINTS[precision]
        self._more_properties = _more_properties(graph, precision)
        self._runtime: Any = import_for(Engine.OPENVINO, "openvino")
        for tensor in (*graph.inputs, *graph.outputs):
            if is_bfloat16(tensor.dtype):
                raise ConfigurationError(
                    f"OpenVINO cannot run {graph.name}: it shares no memory of {tensor}. Take engine torch."
                )
        self._device = find_provider(Engine.OPENVINO, provider) if provider else CPU
        self._core = self._runtime.Core()
        self._compiled: dict[int, PerThreadCount[_CompiledModels]] = {}  # by lanes
        self._found: dict[tuple[int, int, Shapes], _CompiledModel] = {}  # by threads, lanes and shapes
        self._making = threading.Lock()

    def for_pixels(self, pixels: PixelInput) -> OpenVinoPart | None:
        """Returns a part that normalises its images (n, h, w, 3) itself.

        OpenVINO normalises in the pass that brings an image into OpenVINO's own layout, so normalising costs nothing
        more. Returns None if this part does not compute in fp32, or does not take images as its only input.
        """
        if self._precision is not Precision.FP32 or not _takes_images(self.inputs, len(pixels.mean)):
            return None
        if pixels not in self._for_pixels:
            made = OpenVinoPart(self.graph, self._precision, pixels, self._provider)
            self._for_pixels.setdefault(pixels, made)
        return self._for_pixels[pixels]

    def run_prepared(self, outputs: Sequence[Values | None], values: Sequence[Values]) -> tuple[Values, ...]:
        model = self._model(engine_threads(), engine_lanes(), tuple(tuple(each.shape) for each in values))
        request = model.take_request()
        try:
            for index, each in enumerate(values):
                request.set_input_tensor(index, self._shared(each))
            for index, output in enumerate(outputs):
                if output is not None:
                    request.set_output_tensor(index, self._shared(output))
            request.infer(share_outputs=True)  # by default, it returns copies of all results, which nothing reads
            return tuple(
                request.get_output_tensor(index).data.copy() if output is None else output
                for index, output in enumerate(outputs)
            )
        finally:
            model.give_back(request)

    def _shared(self, values: Values) -> Any:
        return self._runtime.Tensor(unlocked(as_array(values)), shared_memory=True)

    def _model(self, num_threads: int, num_lanes: int, shapes: Shapes) -> _CompiledModel:
        """Returns the model for inputs of these shapes. Only compiling takes the lock, not finding."""
        key = num_threads, num_lanes, shapes
        return self._found.get(key) or self._make(*key)

    def _make(self, num_threads: int, num_lanes: int, shapes: Shapes) -> _CompiledModel:
        with self._making:
            if num_lanes not in self._compiled:
                self._compiled[num_lanes] = PerThreadCount(partial(_CompiledModels, num_lanes))
            models = self._compiled[num_lanes].get(num_threads)
            found = models.static.get(shapes)
            if found is None and (self._device != CPU or self._may_add(len(models.static))):
                found = models.static[shapes] = self._compile(models, shapes)
            elif found is None:
                models.dynamic = models.dynamic or self._compile(models, None)
                found = models.dynamic
            self._found[num_threads, num_lanes, shapes] = found
            return found

    def _may_add(self, num_static: int) -> bool:
        """Returns whether one more batch size gets a compiled model of its own, beside ``num_static`` others."""
        if num_static == 0:
            return True
        return num_static < MAX_STATIC and (1 + num_static) * approximate_weight_bytes(self.graph) <= STATIC_BYTES

    def _compile(self, models: _CompiledModels, shapes: Shapes | None) -> _CompiledModel:
        """Compiles the graph for inputs of these shapes, or for any batch size."""
        properties = {
            "INFERENCE_PRECISION_HINT": self._hint,  # by default, OpenVINO computes in 16 bits if the device can
            "INFERENCE_NUM_THREADS": models.num_threads * models.num_lanes,
            "NUM_STREAMS": models.num_lanes,
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_CPU_PINNING": False,  # the other stage's threads may be on those cores
            **self._more_properties,
        }
        if self._device != CPU:  # defaults of the device could quantise activations of large products
            properties = taken_properties(self._core, self._device, {**properties, "EXECUTION_MODE_HINT": "ACCURACY"})
        blob = CompiledBlob(self._core, self._device, properties, self.graph, shapes, self._pixels)
        try:
            compiled = blob.load()
            if compiled is None:
                compiled = self._compile_anew(properties, shapes)
                blob.keep(compiled)
                trim()  # compiling leaves freed memory
            runs_in = str(compiled.get_property("INFERENCE_PRECISION_HINT").to_string())
        except Exception as error:  # OpenVINO raises RuntimeError and others
            raise ConfigurationError(f"OpenVINO cannot run {self.graph.name}: {_reason(error)}") from error
        if runs_in != self._hint:
            raise ConfigurationError(
                f"OpenVINO cannot run {self.graph.name} in {self._hint}: on its device {self._device} it runs in "
                f"{runs_in}."
            )
        return _CompiledModel(compiled, models.num_lanes)

    def _compile_anew(self, properties: dict[str, Any], shapes: Shapes | None) -> Any:
        with model_source(with_plain_operators(self.graph)) as source:
            model = self._core.read_model(source, b"") if isinstance(source, bytes) else self._core.read_model(source)
            if self._pixels is not None:
                model = _normalising(model, self._pixels, self._runtime)
            if shapes is not None:
                model.reshape(dict(zip(model.inputs, map(list, shapes), strict=True)))
            return self._core.compile_model(model, self._device, properties)


class _CompiledModel:
    """A compiled model and its idle requests. Each request serves one call at a time.

    Each lane has a request from the start. A request that is created later waits for executions of the first stream.
    """

    def __init__(self, compiled: Any, num_lanes: int) -> None:
        self._compiled = compiled
        self._idle = deque(compiled.create_infer_request() for _ in range(num_lanes))

    def take_request(self) -> Any:
        try:
            return self._idle.pop()
        except IndexError:
            return self._compiled.create_infer_request()

    def give_back(self, request: Any) -> None:
        self._idle.append(request)


class _CompiledModels:
    """The compiled models for one number of threads: ``static`` by the inputs' shapes, ``dynamic`` for all shapes."""

    def __init__(self, num_lanes: int, num_threads: int) -> None:
        self.num_threads, self.num_lanes = num_threads, num_lanes
        self.static: dict[Shapes, _CompiledModel] = {}
        self.dynamic: _CompiledModel | None = None


def _takes_images(inputs: Sequence[OnnxTensor], channels: int) -> bool:
    """Returns whether a graph takes one tensor, float32 (n, channels, h, w)."""
    return [(each.dtype, len(each.shape), each.shape[1:2]) for each in inputs] == [(FLOAT32, 4, (channels,))]


def _normalising(model: Any, pixels: PixelInput, runtime: Any) -> Any:
    """Returns a model that takes images (N, h, w, 3) and normalises them. ``model`` takes normalised (N, 3, h, w)."""
    processor = runtime.preprocess.PrePostProcessor(model)
    images = processor.input()
    element_type = runtime.Type.u8 if pixels.dtype == np.uint8 else runtime.Type.f32
    images.tensor().set_element_type(element_type).set_layout(runtime.Layout("NHWC"))
    images.model().set_layout(runtime.Layout("NCHW"))
    as_float = images.preprocess().convert_element_type(runtime.Type.f32)
    as_float.mean([255 * mean for mean in pixels.mean]).scale([255 * std for std in pixels.std])
    return processor.build()


def _more_properties(graph: OnnxGraph, precision: Precision) -> dict[str, Any]:
    """Returns properties that OpenVINO needs to compute a graph correctly."""
    if precision is not Precision.INT8:
        return WITHOUT_LOW_PRECISION if any(operator.startswith(QUANTISING) for operator in graph.operators) else {}
    return WITHOUT_FUSED_PRODUCTS if sum(graph.operators.get(product, 0) for product in PRODUCTS) > 1 else {}


def _reason(error: Exception) -> str:
    """Returns the first line of OpenVINO's message, or of its summary, that names a cause and no place in code."""
    lines = [line.strip(" -") for line in str(error).partition("Summary:")[2].splitlines() or str(error).splitlines()]
    causes = [line for line in lines if line and not line.startswith(_NO_CAUSE)]
    return causes[0] if causes else type(error).__name__
