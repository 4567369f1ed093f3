"""Parts of ONNX Runtime and of OpenVINO."""

from __future__ import annotations

import gc
import logging
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import psutil
import pytest
import torch
from comparisons import rounding
from torch import Tensor

from split_infer_ros.buffers.host_arrays import as_array
from split_infer_ros.engines import openvino_part
from split_infer_ros.engines.compiled_blobs import CompiledBlob
from split_infer_ros.engines.engine_part import MAX_THREAD_COUNTS, EnginePart, PerThreadCount
from split_infer_ros.engines.onnxruntime_arena import SHRINKING_RUNS, shared_arena
from split_infer_ros.engines.onnxruntime_part import OnnxRuntimePart
from split_infer_ros.engines.openvino_part import MAX_STATIC, OpenVinoPart
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError, SplitInferError
from split_infer_ros.onnx import model_source
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.runtime.num_threads import run_with_threads, use_engine_threads

pytest.importorskip("onnx")
from onnx import TensorProto, helper
from small_graphs import CHANNELS, ROUNDING, SIDE, graph_of, images, in_torch, small_graph

pytestmark = pytest.mark.numeric

GUARD = 12345.0
WAIT_S = 30.0

MakePart = Callable[[OnnxGraph], EnginePart]


@pytest.fixture(params=["onnxruntime", "openvino"])
def make(request: pytest.FixtureRequest) -> MakePart:
    pytest.importorskip(request.param)
    return {"onnxruntime": OnnxRuntimePart, "openvino": OpenVinoPart}[request.param]


def assert_close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert other.std() > 0.01
        assert rounding(one, other) <= ROUNDING


def guarded(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Memory with 16 guards on each side, and a view of what lies between them."""
    memory = torch.full((torch.Size(shape).numel() + 32,), GUARD)
    return memory, memory[16:-16].view(shape)


def test_batches_of_all_sizes_give_torchs_results(make: MakePart) -> None:
    part = make(small_graph())
    sizes = (2, 1, 4, 3, 1, 5, 4, 6, 2)
    assert len(set(sizes)) > MAX_STATIC  # some sizes share a model
    with torch.inference_mode():
        for seed, size in enumerate(sizes):
            assert_close(part(images(size, seed)), in_torch(images(size, seed)))


@pytest.mark.parametrize(("copies", "models"), [(3.0, 4), (2.0, 3), (0.0, 2)])
def test_large_weights_are_compiled_for_fewer_batch_sizes(
    copies: float, models: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each compiled model has its own copy of the weights. One of them is for all batch sizes."""
    pytest.importorskip("openvino")
    graph = small_graph()
    allowed = copies * model_source.approximate_weight_bytes(graph)
    monkeypatch.setattr(openvino_part, "STATIC_BYTES", allowed)
    made: list[object] = []
    compiled_blob = openvino_part.CompiledBlob

    def note(*args: object) -> object:
        made.append(args[4])
        return compiled_blob(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(openvino_part, "CompiledBlob", note)
    part = OpenVinoPart(graph)
    with torch.inference_mode():
        for size in (1, 2, 3, 4, 5, 1):
            assert_close(part(images(size, size)), in_torch(images(size, size)))
    assert (len(made), made.count(None)) == (models, 1)


def test_equal_calls_give_equal_bits(make: MakePart) -> None:
    """The very same kernels run, on memory of the same alignment or of another."""
    part = make(small_graph())
    before = part(images(3))
    for _ in range(3):
        assert all(torch.equal(one, other) for one, other in zip(part(images(3)), before, strict=True))


def test_results_of_two_calls_do_not_share_memory(make: MakePart) -> None:
    part = make(small_graph())
    first = part(images(2, seed=0))
    kept = tuple(tensor.clone() for tensor in first)
    second = part(images(2, seed=1))
    assert all(torch.equal(one, other) for one, other in zip(first, kept, strict=True))
    assert not any(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_results_are_written_into_given_memory_alone(make: MakePart) -> None:
    part = make(small_graph())
    assert part.can_run_into
    for size in (2, 1, 4):
        (memory, features), (more, means) = guarded((size, CHANNELS, SIDE, SIDE)), guarded((size, CHANNELS))
        part.run_into((features, means), images(size))
        assert_close((features, means), in_torch(images(size)))
        for each in (memory, more):
            assert (each[:16] == GUARD).all()
            assert (each[-16:] == GUARD).all()


def test_contiguous_inputs_are_read_in_place(make: MakePart, caplog: pytest.LogCaptureFixture) -> None:
    part = make(small_graph())
    memory = torch.zeros(64 + images(2).numel())
    view = memory[64:].view(images(2).shape)
    view.copy_(images(2))
    with caplog.at_level(logging.INFO):
        assert_close(part(view), in_torch(images(2)))
        assert part.conversions == 0
        assert not caplog.messages
        for _ in range(2):
            assert_close(part(images(2).contiguous(memory_format=torch.channels_last)), in_torch(images(2)))
    assert part.conversions == 2
    (message,) = caplog.messages
    assert message.startswith(f"small converts {images(2).nbytes} bytes of each batch")


def test_arrays_give_arrays_and_tensors_give_tensors_of_the_same_bits(make: MakePart) -> None:
    part, given = make(small_graph()), images(2)
    tensors = part(given)
    arrays = part(as_array(given))
    for tensor, array in zip(tensors, arrays, strict=True):
        assert isinstance(tensor, Tensor)
        assert isinstance(array, np.ndarray)
        assert np.array_equal(as_array(tensor), array)
    assert_close(tensors, in_torch(given))


def test_results_are_written_into_arrays(make: MakePart) -> None:
    part, given = make(small_graph()), as_array(images(2))
    expected = part(given)
    places = [np.full(each.shape, np.nan, np.float32) for each in expected]
    part.run_into(places, given)
    assert all(np.array_equal(one, other) for one, other in zip(places, expected, strict=True))


def test_results_in_given_arrays_are_not_copied(make: MakePart) -> None:
    part, given = make(small_graph()), as_array(images(64))
    places = [np.empty_like(each) for each in part(given)]
    tracemalloc.start()  # NumPy reports its memory to it
    try:
        part.run_into(places, given)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < places[0].nbytes


def test_read_only_arrays_are_read_in_place(make: MakePart) -> None:
    part, given = make(small_graph()), as_array(images(2))
    expected = part(given)
    given.flags.writeable = False
    assert all(np.array_equal(one, other) for one, other in zip(part(given), expected, strict=True))
    assert part.conversions == 0


def test_arrays_in_another_layout_are_converted(make: MakePart) -> None:
    part, given = make(small_graph()), as_array(images(2).contiguous(memory_format=torch.channels_last))
    expected = part(np.ascontiguousarray(given))
    assert part.conversions == 0
    assert all(np.array_equal(one, other) for one, other in zip(part(given), expected, strict=True))
    assert part.conversions == 1


def test_memory_that_does_not_fit_is_refused(make: MakePart) -> None:
    part = make(small_graph())
    features, means = torch.zeros(2, CHANNELS, SIDE, SIDE), torch.zeros(2, CHANNELS)
    for wrong in (
        features[:1],
        features.double(),
        features.contiguous(memory_format=torch.channels_last),
        torch.zeros(2, CHANNELS, SIDE, SIDE + 1),
    ):
        with pytest.raises(SplitInferError, match=r"^small gives features float32 \(\?, 8, 12, 12\), which cannot be"):
            part.run_into((wrong, means), images(2))
        with pytest.raises(SplitInferError, match=r"^small gives features float32 \(\?, 8, 12, 12\), which cannot be"):
            part.run_into((as_array(wrong), as_array(means)), as_array(images(2)))
    with pytest.raises(
        SplitInferError, match=r"^small takes images float32 \(\?, 3, 12, 12\), and was given float64\."
    ):
        part(images(1).double())
    with pytest.raises(
        SplitInferError, match=r"^small takes images float32 \(\?, 3, 12, 12\), and was given float64\."
    ):
        part(as_array(images(1).double()))


def sessions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns a list of the sessions that ONNX Runtime makes from now on."""
    runtime = pytest.importorskip("onnxruntime")
    make_session, made = runtime.InferenceSession, []

    def record(*arguments: object, **options: object) -> object:
        made.append(make_session(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(runtime, "InferenceSession", record)
    return made


@pytest.fixture
def threads_of_made(make: MakePart, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """Returns the numbers of threads of the sessions and compiled models that were made."""
    if make is OnnxRuntimePart:
        made = sessions(monkeypatch)
        return lambda: [each.get_session_options().intra_op_num_threads for each in made]
    asked: list[int] = []

    def record(core: object, device: str, properties: dict[str, Any], *others: Any) -> CompiledBlob:
        asked.append(properties["INFERENCE_NUM_THREADS"])
        return CompiledBlob(core, device, properties, *others)

    monkeypatch.setattr("split_infer_ros.engines.openvino_part.CompiledBlob", record)
    return lambda: asked


@pytest.mark.parametrize("num_threads", [1, 2])
def test_threads_are_those_of_the_calling_thread(
    make: MakePart, threads_of_made: Callable[[], list[int]], num_threads: int
) -> None:
    """Helpers that a first call starts are gone or counted: the results equal torch's with any number of threads."""
    part = make(small_graph())
    found = run_with_threads(num_threads, lambda: part(images(2)))
    assert threads_of_made() == [num_threads]
    assert_close(found, in_torch(images(2)))


def test_few_numbers_of_threads_have_a_session(make: MakePart, threads_of_made: Callable[[], list[int]]) -> None:
    part = make(small_graph())
    made = (2, 1, 4)
    assert len(made) == MAX_THREAD_COUNTS
    for threads in (*made, 3, 8, 1):
        assert_close(run_with_threads(threads, lambda: part(images(1))), in_torch(images(1)))
    assert threads_of_made() == [*made]


def test_other_numbers_of_threads_take_the_nearest_smaller_one() -> None:
    made: list[int] = []
    held = PerThreadCount(lambda number: made.append(number) or f"for {number}")
    for _ in range(2):
        assert [held.get(number) for number in (2, 3, 4)] == ["for 2", "for 3", "for 4"]
    assert held.get(8) == "for 4"
    assert held.get(1) == "for 2", "all are larger"
    assert made == [2, 3, 4], "each was made once"


def test_lanes_compute_side_by_side_what_each_computes_alone(make: MakePart) -> None:
    """Equal up to rounding, as the threads of a part decide in which order it adds."""
    part = make(small_graph())
    inputs = [images(1), images(2)]
    with ThreadPoolExecutor(2, initializer=lambda: use_engine_threads(1, 2)) as lanes:
        for _ in range(5):
            for given, found in zip(inputs, lanes.map(part, inputs), strict=True):
                assert_close(found, in_torch(given))


MANY = 20_000  # images, whose activations are far larger than anything else that changes in this process
ACTIVATION_BYTES = MANY * CHANNELS * SIDE * SIDE * 4


def run_many(part: OnnxRuntimePart) -> None:
    places = [torch.empty(shape) for shape in ((MANY, CHANNELS, SIDE, SIDE), (MANY, CHANNELS))]
    part.run_into(places, images(MANY))


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def test_sessions_of_onnx_runtime_share_the_memory_of_their_activations() -> None:
    """With arenas of their own, each would keep the result of the first convolution at least."""
    pytest.importorskip("onnxruntime")
    parts = [OnnxRuntimePart(small_graph()) for _ in range(3)]
    run_many(parts[0])
    before = resident_bytes()
    for part in parts[1:]:
        run_many(part)
    assert resident_bytes() - before < ACTIVATION_BYTES / 2


def test_what_dropped_sessions_of_onnx_runtime_needed_is_given_back() -> None:
    pytest.importorskip("onnxruntime")
    small, large = OnnxRuntimePart(small_graph()), OnnxRuntimePart(small_graph())
    gc.collect()
    for _ in range(SHRINKING_RUNS):  # after sessions of earlier tests
        small(images(1))
    run_many(large)
    before = resident_bytes()
    small(images(1))
    assert before - resident_bytes() < ACTIVATION_BYTES / 2, "it is kept for the next run"
    del large
    gc.collect()
    for _ in range(SHRINKING_RUNS):
        assert_close(small(images(1)), in_torch(images(1)))
    assert before - resident_bytes() > ACTIVATION_BYTES / 2


def test_sessions_without_a_shared_arena_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("split_infer_ros.engines.onnxruntime_part.shared_arena", lambda runtime: None)
    assert_close(OnnxRuntimePart(small_graph())(images(2)), in_torch(images(2)))


def test_an_arena_that_cannot_shrink_costs_no_run() -> None:
    """A program may replace the arena by an allocator that cannot shrink."""
    runtime, session = MagicMock(__version__="1.32.0"), MagicMock()
    session.run_with_iobinding.side_effect = refuse_options
    arena = shared_arena(runtime)
    assert arena is not None
    dropped = MagicMock()
    arena.watch(dropped)
    del dropped
    gc.collect()
    for _ in range(SHRINKING_RUNS + 1):
        arena.run(session, "binding")
    assert runtime.RunOptions.call_count == SHRINKING_RUNS
    assert session.run_with_iobinding.call_count == 2 * SHRINKING_RUNS + 1


def refuse_options(binding: object, options: object = None) -> None:
    if options is not None:
        raise RuntimeError("Did not find an arena based allocator.")


@pytest.mark.parametrize("version", ["1.20.1", "strange"])
def test_old_versions_have_no_shared_arena(version: str) -> None:
    assert shared_arena(MagicMock(__version__=version)) is None


def test_there_is_no_shared_arena_if_it_cannot_be_registered() -> None:
    refuses = {"create_and_register_allocator.side_effect": RuntimeError("It is registered already.")}
    assert shared_arena(MagicMock(__version__="1.32.0", **refuses)) is None


SPINNING = ("intra_op.allow_spinning", "inter_op.allow_spinning", "intra_op.spin_duration_us", "force_spinning_stop")


def spinning_of(session: Any) -> dict[str, str]:
    """Returns those options of ``SPINNING`` that a session has."""
    found = {}
    for name in SPINNING:
        with suppress(RuntimeError):  # it has no such option
            found[name] = session.get_session_options().get_session_config_entry(f"session.{name}")
    return found


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize(
    ("version", "has_duration"), [("1.23.2", False), ("strange", False), ("1.32.0", True), ("2.0.0+gpu", True)]
)
def test_threads_of_onnx_runtime_spin_briefly_or_not_at_all(
    version: str, has_duration: bool, is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sessions(monkeypatch)
    monkeypatch.setattr("onnxruntime.__version__", version)
    OnnxRuntimePart(small_graph(), is_whole=is_whole)(images(1))
    (session,) = made
    assert session.get_session_options().intra_op_num_threads == torch.get_num_threads()
    never = {
        "intra_op.allow_spinning": "0",
        "inter_op.allow_spinning": "0",
    }
    briefly = {
        "intra_op.allow_spinning": "1",
        "inter_op.allow_spinning": "0",
        "intra_op.spin_duration_us": "100" if is_whole else "10",
        "force_spinning_stop": "1",
    }
    assert spinning_of(session) == (briefly if has_duration else never)


def run_on_tensorrt(
    monkeypatch: pytest.MonkeyPatch, loaded: Sequence[str], precision: Precision = Precision.FP32
) -> list[object]:
    """Runs a part by TensorRT on a runtime whose sessions have these providers. Returns those asked for.

    The simulated sessions compute nothing, so memory of the host will do. Its device has the index 1.
    """
    asked: list[object] = []

    def make_session(source: object, options: object, providers: Sequence[object]) -> object:
        asked.extend(providers)
        return MagicMock(**{"get_providers.return_value": [f"{name}ExecutionProvider" for name in loaded]})

    runtime = pytest.importorskip("onnxruntime")
    available = [f"{name}ExecutionProvider" for name in ("Tensorrt", "CUDA", "CPU")]
    monkeypatch.setattr(runtime, "get_available_providers", lambda: available)
    monkeypatch.setattr(runtime, "InferenceSession", make_session)
    OnnxRuntimePart(small_graph(), "tensorrt", torch.device("cpu", 1), precision)(images(1))
    return asked


@pytest.mark.parametrize(
    ("precision", "options"),
    [(Precision.FP32, {"device_id": 1}), (Precision.BF16, {"device_id": 1, "trt_bf16_enable": True})],
)
def test_cuda_runs_what_tensorrt_cannot(
    precision: Precision, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = run_on_tensorrt(monkeypatch, ["Tensorrt", "CUDA", "CPU"], precision)
    assert asked == [("TensorrtExecutionProvider", options), ("CUDAExecutionProvider", {"device_id": 1})]


def test_a_session_without_tensorrt_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = "by TensorrtExecutionProvider: it fell back to CUDAExecutionProvider, CPUExecutionProvider"
    with pytest.raises(ConfigurationError, match=sentence):
        run_on_tensorrt(monkeypatch, ["CUDA", "CPU"])


def test_several_threads_may_call_at_once(make: MakePart) -> None:
    part = make(small_graph())
    start = threading.Barrier(4)

    def run(seed: int) -> list[tuple[Tensor, ...]]:
        start.wait()
        return [part(images(1 + seed % 2, seed)) for _ in range(20)]

    with ThreadPoolExecutor(4) as executor:
        for seed, results in enumerate(executor.map(run, range(4))):
            for found in results:
                assert_close(found, in_torch(images(1 + seed % 2, seed)))


def test_calls_go_on_while_another_number_of_threads_is_prepared(make: MakePart) -> None:
    part = make(small_graph())
    name = "_make_session" if isinstance(part, OnnxRuntimePart) else "_compile"
    original, begun, gate = getattr(part, name), threading.Event(), threading.Event()

    def wait(threads: object, *others: object) -> object:
        if getattr(threads, "num_threads", threads) == 2:
            begun.set()
            assert gate.wait(WAIT_S)
        return original(threads, *others)

    setattr(part, name, wait)
    run_with_threads(1, lambda: part(images(1)))
    with ThreadPoolExecutor(1) as executor:
        other = executor.submit(run_with_threads, 2, lambda: part(images(1)))
        assert begun.wait(WAIT_S)
        found = run_with_threads(1, lambda: [part(images(1, seed)) for seed in range(20)])
        assert not other.done()
        gate.set()
        assert_close(other.result(WAIT_S), in_torch(images(1)))
    assert_close(found[-1], in_torch(images(1, 19)))


def test_results_of_unknown_length_are_returned(make: MakePart) -> None:
    """An output whose length depends on values cannot be written into given memory; its results are their own."""
    part = make(
        graph_of(
            [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("NonZero", ["y"], ["places"])],
            inputs={"x": ["batch", 5]},
            outputs={"y": ["batch", 5], "places": [2, "found"]},
            types={"places": TensorProto.INT64},
        )
    )
    assert not part.can_run_into
    first = images(1).flatten()[:15].view(3, 5)
    found, places = part(first)
    assert torch.equal(found, first.relu())
    expected = first.relu().nonzero().T
    assert 0 < expected.shape[1] < 15
    part(torch.ones(3, 5))
    assert torch.equal(places, expected)


def test_models_above_protobufs_limit_go_by_a_file(make: MakePart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_source, "MAX_BYTES", 100)
    graph = small_graph()
    before = graph.digest
    with model_source.model_source(graph) as source:
        assert isinstance(source, str)
    assert_close(make(graph)(images(2)), in_torch(images(2)))
    assert OnnxGraph("small", graph.proto).digest == before


def test_a_graph_that_the_engine_does_not_know_is_refused(make: MakePart) -> None:
    graph = small_graph()
    graph.proto.graph.node[1].op_type = "NoSuchOperator"
    with pytest.raises(ConfigurationError, match=r"^(ONNX Runtime|OpenVINO) cannot run small: .*NoSuchOperator"):
        make(graph)(images(1))
