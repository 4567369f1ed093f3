"""What the makers of processors and run-times offer to run a network with, in fp32.

``vendors_of`` gives callables of one batch with the settings for a low latency. ``throughputs_of`` measures images a
second with the settings for throughput.
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
    """Those that are installed and take this network, by name; why another one does not is printed.

    On a GPU that is cuDNN through PyTorch, which tries its algorithms first, channels last; on a CPU the others.

    Args:
        module: as built.
        images: contiguous, where the module is; that batch is what they run.
        threads: that each may use.
        quickly: by the exporter to ONNX that traces: in a tenth of the time. Of MobileNetV2 it gives as fast a network,
            of ResNet-50 and SSDlite320 perhaps a slower one.
    """
    if images.is_cuda:
        return {CUDNN: _cudnn(module, images)}
    makers = {ONNX_RUNTIME: functools.partial(_onnx_runtime, quickly=quickly), OPENVINO: _openvino}
    return _made_by(makers, module, images, threads)


def throughputs_of(module: nn.Module, images: Tensor, threads: int, quickly: bool = False) -> dict[str, Throughput]:
    """Returns the engines that are installed and take this network on a CPU, by name.

    ONNX Runtime runs one batch after the other with all threads. OpenVINO has its hint for throughput, by which it
    chooses how many batches run concurrently, and all of its requests are kept busy.

    Args:
        module: as built.
        images: a batch, contiguous.
        threads: that each may use.
        quickly: whether the network is exported in the quick way; see ``vendors_of``.
    """
    make = functools.partial(_onnx_runtime_throughput, quickly=quickly)
    return _made_by({ONNX_RUNTIME: make, OPENVINO: _openvino_throughput}, module, images, threads)


def _made_by(
    makers: Mapping[str, Callable[[nn.Module, Tensor, int], Made]], module: nn.Module, images: Tensor, threads: int
) -> dict[str, Made]:
    """Returns what each maker makes of a network, by name. Says why one does not take part."""
    found = {}
    for name, make in makers.items():
        try:
            with _quiet(), torch.no_grad():
                found[name] = make(module, images, threads)
        except Exception as error:  # whatever an exporter does not bear
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
    """Exporters tell at length what they do."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
