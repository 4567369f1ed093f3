"""A part that ONNX Runtime executes, bound to the caller's memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from split_infer_ros.buffers.host_arrays import Array, DType, Values, as_tensor, is_bfloat16, torch_dtype
from split_infer_ros.engines.engine import PROVIDER_SUFFIX, Engine, find_provider, import_for, is_for_gpu
from split_infer_ros.engines.engine_part import EnginePart, PerThreadCount
from split_infer_ros.engines.onnxruntime_arena import release_of, shared_arena
from split_infer_ros.engines.precision import Precision
from split_infer_ros.engines.precision_checks import TENSORRT
from split_infer_ros.errors import ConfigurationError, first_line
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.model_source import model_source
from split_infer_ros.runtime.device import CPU, Device
from split_infer_ros.runtime.heap import trim
from split_infer_ros.runtime.num_threads import engine_threads
from split_infer_ros.runtime.streams import current_fence

SPIN_US, LONG_SPIN_US = 10, 100  # how long threads spin in a partition, and in a whole network
MAX_BOUND = 1024  # kept bindings; micro-batches reuse a few hundred places of inputs and outputs
MIN_VERSION_WITH_SPIN_DURATION = (1, 32)
BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16, because NumPy has no such type


class OnnxRuntimePart(EnginePart):
    """A part that ONNX Runtime executes with as many threads as ``engine_threads`` says.

    For each number of threads, the first call makes a session, with all of ONNX Runtime's optimisations.
    ``PerThreadCount`` limits the number of sessions. A session's threads sleep between two runs. Within a run, they
    soon sleep when they have no work. On a CPU, all sessions of the process take activations from one arena.

    Args:
        graph: the graph to execute.
        provider: a provider of ONNX Runtime, such as ``CUDA``; empty for the CPU.
        device: the device on which inputs and results lie.
        precision: the precision in which TensorRT computes. Other providers compute in the graph's precision.
        is_whole: whether the graph is a whole network, so that no other partition computes beside it.

    Raises:
        ConfigurationError: ONNX Runtime or the provider is not installed.
    """

    def __init__(
        self,
        graph: OnnxGraph,
        provider: str = "",
        device: Device = CPU,
        precision: Precision = Precision.FP32,
        is_whole: bool = False,
    ) -> None:
        super().__init__(graph)
        self._precision, self._is_whole = precision, is_whole
        self._runtime: Any = import_for(Engine.ONNXRUNTIME, "onnxruntime")
        self._provider = find_provider(Engine.ONNXRUNTIME, provider)
        self._device = device
        self._arena = shared_arena(self._runtime) if device.type == "cpu" and not provider else None
        self._sessions: PerThreadCount[Any] = PerThreadCount(lambda num_threads: self._make_session(num_threads))
        self._keeps_bound = self.can_run_into and self._device.type == "cpu"
        self._bound: dict[Sequence[Any], tuple[Any, Any]] = {}  # by threads, shapes of inputs and pointers

    def run_prepared(self, outputs: Sequence[Values | None], values: Sequence[Values]) -> tuple[Values, ...]:
        if self._device.type != "cpu":  # ONNX Runtime has a stream of its own, and may copy an input as it is bound
            current_fence(self._device).wait()
        places = [_address(each) for each in (*values, *outputs) if each is not None]
        key = engine_threads(), *(each.shape for each in values), *places
        session, binding = self._bound.get(key) or self._bind(key, outputs, values)
        run = session.run_with_iobinding if self._arena is None else partial(self._arena.run, session)
        run(binding)  # returns when the results are written, also on a GPU
        if self.can_run_into:
            return tuple(outputs)  # type: ignore[arg-type]
        found = binding.get_outputs()
        return tuple(
            self._placed(result.numpy()) if output is None else output
            for output, result in zip(outputs, found, strict=True)
        )

    def _taken(self, values: Values) -> Values:
        return super()._taken(values) if self._device.type == "cpu" else as_tensor(values)

    def _empty(self, shape: tuple[int, ...], dtype: DType) -> Values:
        if self._device.type == "cpu":
            return super()._empty(shape, dtype)
        import torch  # only here: results on a GPU are tensors

        return torch.empty(shape, dtype=torch_dtype(dtype), device=self._device)

    def _placed(self, result: Array) -> Values:
        return result if self._device.type == "cpu" else as_tensor(result).to(self._device)

    def _bind(self, key: Sequence[Any], outputs: Sequence[Values | None], values: Sequence[Values]) -> tuple[Any, Any]:
        """Returns the calling thread's session, and a binding of inputs and outputs to their memory.

        On a CPU, the binding is kept for the next batch in the same memory. A run of a network evicts the binding code
        from the processor's caches. Binding again would then take ten times as long as usual: 0.2 of MobileNetV2's
        4.1 ms. On a GPU, bindings are not kept, because ONNX Runtime may copy an input when it is bound.
        """
        session = self._sessions.get(engine_threads())
        binding, kind, index = session.io_binding(), self._device.type, self._device.index or 0
        for expected, each in zip(self.graph.inputs, values, strict=True):
            element_type = _element_type(expected.dtype)
            binding.bind_input(expected.name, kind, index, element_type, list(each.shape), _address(each))
        for expected, output in zip(self.graph.outputs, outputs, strict=True):
            if output is None:
                binding.bind_output(expected.name, "cpu")
            else:
                element_type = _element_type(expected.dtype)
                binding.bind_output(expected.name, kind, index, element_type, list(output.shape), _address(output))
        if self._keeps_bound:
            if len(self._bound) >= MAX_BOUND:
                self._bound.clear()
            self._bound[key] = session, binding
        return session, binding

    def _make_session(self, num_threads: int) -> Any:
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = num_threads
        options.inter_op_num_threads = 1
        options.execution_mode = self._runtime.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = self._runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3  # errors only; it gives a warning for each node that it cannot place on a GPU
        for name, value in _spinning(release_of(self._runtime), self._is_whole).items():
            options.add_session_config_entry(f"session.{name}", value)
        if self._arena is not None:
            self._arena.serve(options)
        try:
            with model_source(self.graph) as source:
                session = self._runtime.InferenceSession(source, options, providers=self._providers())
        except Exception as error:  # ONNX Runtime has its own exceptions
            raise ConfigurationError(f"ONNX Runtime cannot run {self.graph.name}: {first_line(error, None)}") from error
        if self._provider not in session.get_providers():
            raise ConfigurationError(
                f"ONNX Runtime cannot run {self.graph.name} by {self._provider}: it fell back to "
                f"{', '.join(session.get_providers())}. Check that the provider's libraries fit the installed ones."
            )
        if self._arena is not None:
            self._arena.watch(session)
        trim()  # optimising the graph leaves freed memory
        return session

    def _providers(self) -> list[tuple[str, dict[str, Any]]]:
        """Returns ONNX Runtime's providers with their options. Each provider runs nodes that earlier ones cannot run.

        CUDA follows TensorRT. The CPU is always last, and need not be named.
        """
        name = self._provider.removesuffix(PROVIDER_SUFFIX).lower()
        options: dict[str, Any] = {"device_id": self._device.index or 0} if is_for_gpu(Engine.ONNXRUNTIME, name) else {}
        if name != TENSORRT:
            return [(self._provider, options)]
        precision = {} if self._precision is Precision.FP32 else {f"trt_{self._precision.value}_enable": True}
        return [(self._provider, {**options, **precision}), (f"CUDA{PROVIDER_SUFFIX}", options)]


def _address(values: Values) -> int:
    return int(values.ctypes.data if isinstance(values, np.ndarray) else values.data_ptr())


def _element_type(dtype: DType) -> Any:
    return BFLOAT16 if is_bfloat16(dtype) else dtype.type


def _spinning(release: tuple[int, int], is_whole: bool) -> dict[str, str]:
    """Returns how threads wait for each other, as ONNX Runtime's options without ``session.`` in front.

    Threads that sleep between operators wake up late. Threads that spin for long take the cores from other threads.
    They spin for ``LONG_SPIN_US`` in a whole network, because the other stage then has little work. They spin for
    ``SPIN_US`` in a partition. Measured with one image and two threads on two cores, in ms, alone and beside a thread
    that is busy all the time:

    =======================  ============  =============  ============
    spinning                 MobileNetV2   ViT-Tiny       YOLOv8n size
    =======================  ============  =============  ============
    for 10 us                5.2 and 8.1   19.5 and 25.9  46.9 and 63
    for 100 us               5.0 and 9.0   16.8 and 33.5  42.8 and 71
    ONNX Runtime's default   5.1 and 9.3   16.9 and 38.4  38.2 and 91
    =======================  ============  =============  ============

    Args:
        release: of ONNX Runtime. Threads do not spin if it has no option for the duration.
        is_whole: whether the part is a whole network.
    """
    waiting = {"intra_op.allow_spinning": "0", "inter_op.allow_spinning": "0"}
    if release >= MIN_VERSION_WITH_SPIN_DURATION:
        waiting["intra_op.allow_spinning"] = "1"
        waiting["intra_op.spin_duration_us"] = str(LONG_SPIN_US if is_whole else SPIN_US)
        waiting["force_spinning_stop"] = "1"  # between two runs, threads sleep at once
    return waiting
