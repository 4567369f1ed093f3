"""Runs a network in fp32 with the libraries of the makers of processors and run-times.

``vendors_of`` returns functions that run one batch, with settings for low latency. ``throughputs_of`` measures images
per second, with settings for throughput.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import logging
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from split_infer_ros.runtime.usage_reports import stop_usage_reports

ONNX_RUNTIME, OPENVINO, CUDNN = VENDORS = ("ONNX Runtime", "OpenVINO", "cuDNN")

Made = TypeVar("Made")
Run = Callable[[], object]
Throughput = Callable[[int], float]
"""Runs so many images and returns the images a second."""


def vendors_of(module: nn.Module, images: Tensor, threads: int, quickly: bool = False) -> dict[str, Run]:
    """Returns the libraries that are installed and can run this network, by name. Prints why another one cannot.

    On a GPU, it is cuDNN through PyTorch, channels last; cuDNN first tries its algorithms. On a CPU, it is the others.

    Args:
        module: the model as built.
        images: the batch to run, contiguous, on the module's device.
        threads: the number of threads that each library may use.
        quickly: whether the ONNX exporter that traces is used. It takes a tenth of the time. MobileNetV2 is as fast
            with it; ResNet-50 and SSDlite320 are perhaps slower.
    """
    if images.is_cuda:
        return {CUDNN: _cudnn(module, images)}
    makers = {ONNX_RUNTIME: functools.partial(_onnx_runtime, quickly=quickly), OPENVINO: _openvino}
    return _made_by(makers, module, images, threads)


def throughputs_of(module: nn.Module, images: Tensor, threads: int, quickly: bool = False) -> dict[str, Throughput]:
    """Returns the engines that are installed and can run this network on a CPU, by name.

    ONNX Runtime runs one batch after another with all threads. OpenVINO gets its hint for throughput: it chooses how
    many batches run concurrently, and all of its requests are kept busy.

    Args:
        module: the model as built.
        images: a batch, contiguous.
        threads: the number of threads that each engine may use.
        quickly: whether the network is exported in the quick way; see ``vendors_of``.
    """
    make = functools.partial(_onnx_runtime_throughput, quickly=quickly)
    return _made_by({ONNX_RUNTIME: make, OPENVINO: _openvino_throughput}, module, images, threads)


def _made_by(
    makers: Mapping[str, Callable[[nn.Module, Tensor, int], Made]], module: nn.Module, images: Tensor, threads: int
) -> dict[str, Made]:
    """Returns what each function in ``makers`` makes of a network, by name. Prints why one of them fails."""
    found = {}
    for name, make in makers.items():
        try:
            with _quiet(), torch.no_grad():
                found[name] = make(module, images, threads)
        except Exception as error:  # exporters raise errors of any type
            reason = str(error).strip().partition("\n")[0][:200]
            print(f"{name} does not take part: {type(error).__name__}: {reason}")
    return found


def _onnx_runtime_throughput(module: nn.Module, images: Tensor, threads: int, quickly: bool) -> Throughput:
    run = _onnx_runtime(module, images, threads, quickly)

    def measure(count: int) -> float:
        batches = math.ceil(count / len(images))
        run()
        begin = time.perf_counter()
        for _ in range(batches):
            run()
        return batches * len(images) / (time.perf_counter() - begin)

    return measure


def _openvino_throughput(module: nn.Module, images: Tensor, threads: int) -> Throughput:
    stop_usage_reports()
    import openvino

    hints = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    network = openvino.convert_model(module, example_input=images)
    compiled = openvino.Core().compile_model(network, "CPU", hints)
    queue = openvino.AsyncInferQueue(compiled)
    given = [images.numpy()]

    def run(batches: int) -> None:
        for _ in range(batches):
            queue.start_async(given)
        queue.wait_all()

    def measure(count: int) -> float:
        batches = max(math.ceil(count / len(images)), len(queue))
        run(len(queue))
        begin = time.perf_counter()
        run(batches)
        return batches * len(images) / (time.perf_counter() - begin)

    return measure


def _onnx_runtime(module: nn.Module, images: Tensor, threads: int, quickly: bool) -> Run:
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "network.onnx")
        torch.onnx.export(module, (images,), str(path), dynamo=not quickly, external_data=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: images.numpy()}
    return lambda: session.run(None, given)


def _openvino(module: nn.Module, images: Tensor, threads: int) -> Run:
    stop_usage_reports()
    import openvino

    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    network = openvino.convert_model(module, example_input=images)
    request = openvino.Core().compile_model(network, "CPU", hints).create_infer_request()
    given = [images.numpy()]
    return lambda: request.infer(given)


def _cudnn(module: nn.Module, images: Tensor) -> Run:
    network = copy.deepcopy(module).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    given = images.contiguous(memory_format=torch.channels_last)

    def run() -> object:
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=torch.backends.cudnn.allow_tf32):
            return network(given)

    return run


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences exporters, which print at length what they do."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
