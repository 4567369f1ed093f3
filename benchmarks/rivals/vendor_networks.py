"""Runs a network in fp32 with the libraries of vendors: ONNX Runtime, OpenVINO and cuDNN.

OpenVINO takes part a second time in the precision that it takes if none is named, unless that is fp32 too.
``vendors_of`` returns functions that run one batch, with the settings for a low latency. ``throughputs_of`` returns
functions that measure images a second, with the settings for throughput.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from benchmarks.rivals.usual_openvino import AS_IT_COMPILES, FP32, compile_network, precision_of
from split_infer_ros.runtime.usage_reports import stop_usage_reports

ONNX_RUNTIME, OPENVINO, CUDNN = VENDORS = ("ONNX Runtime", "OpenVINO", "cuDNN")  # in fp32
OPENVINO_AS_IT_COMPILES = "OpenVINO, as it compiles"

Made = TypeVar("Made")
Run = Callable[[], object]
Throughput = Callable[[int], float]
"""Runs at least the given number of images, in whole batches, and returns the images a second."""


class SameAsFp32(Exception):
    """Raised if OpenVINO compiles in fp32 by default. OpenVINO as it compiles is then not measured a second time."""


def vendors_of(
    module: nn.Module, images: Tensor, threads: int, quickly: bool = False, say: Callable[[str], None] = print
) -> dict[str, Run]:
    """Returns functions that run a batch, by the name of the library.

    A library that is not installed, or cannot run this network, is left out. On a GPU, the library is cuDNN through
    PyTorch, in channels last. cuDNN first tries its algorithms. On a CPU, the libraries are ONNX Runtime and OpenVINO.

    Args:
        module: the model as built.
        images: the batch that the functions run: contiguous, on the device of the module.
        threads: the number of threads that each library may use on a CPU.
        quickly: whether the model is exported to ONNX by tracing, which takes a tenth of the time. For MobileNetV2, the
            result is as fast. For ResNet-50 and SSDlite320, it may be slower.
        say: called with a sentence for each library that does not take part, and with the precision in which OpenVINO
            compiles by default.
    """
    if images.is_cuda:
        return {CUDNN: _cudnn(module, images)}
    compile_by = _OpenVinoCompiler(module, images, threads, "LATENCY")
    makers: dict[str, Callable[[], Run]] = {
        ONNX_RUNTIME: lambda: _onnx_runtime(module, images, threads, quickly),
        OPENVINO: lambda: _openvino(compile_by(FP32), images),
        OPENVINO_AS_IT_COMPILES: lambda: _openvino(compile_by(AS_IT_COMPILES), images),
    }
    return _made_by(makers, compile_by, say)


def throughputs_of(
    module: nn.Module, images: Tensor, threads: int, quickly: bool = False, say: Callable[[str], None] = print
) -> dict[str, Throughput]:
    """Returns functions that measure images a second on a CPU, by the name of the library.

    A library that is not installed, or cannot run this network, is left out. ONNX Runtime runs one batch after another
    with all threads. OpenVINO gets its hint for throughput: it chooses how many batches run concurrently, and all of
    its requests are kept busy.

    Args:
        module: the model as built.
        images: a batch, contiguous.
        threads: the number of threads that each library may use.
        quickly, say: see ``vendors_of``.
    """
    compile_by = _OpenVinoCompiler(module, images, threads, "THROUGHPUT")
    makers: dict[str, Callable[[], Throughput]] = {
        ONNX_RUNTIME: lambda: _onnx_runtime_throughput(module, images, threads, quickly),
        OPENVINO: lambda: _openvino_throughput(compile_by(FP32), images),
        OPENVINO_AS_IT_COMPILES: lambda: _openvino_throughput(compile_by(AS_IT_COMPILES), images),
    }
    return _made_by(makers, compile_by, say)


class _OpenVinoCompiler:
    """Compiles a network with OpenVINO for one of ``PRECISIONS``. The network is converted once.

    Attributes:
        default: the precision that OpenVINO takes if none is named; empty before it compiled so.
    """

    def __init__(self, module: nn.Module, images: Tensor, threads: int, performance: str) -> None:
        self._module, self._images = module, images
        self._threads, self._performance = threads, performance
        self._network: Any = None
        self.default = ""

    def __call__(self, precision: str) -> Any:
        """Returns the compiled network.

        Raises:
            SameAsFp32: no precision is named, and OpenVINO takes fp32.
        """
        stop_usage_reports()
        import openvino

        if self._network is None:
            self._network = openvino.convert_model(self._module, example_input=self._images)
        compiled = compile_network(
            openvino.Core(), self._network, precision, threads=self._threads, performance=self._performance
        )
        if precision == AS_IT_COMPILES:
            self.default = precision_of(compiled)
            if self.default == FP32:
                raise SameAsFp32(f"{FP32} here, so {OPENVINO} stands for both")
        return compiled


def _made_by(
    makers: Mapping[str, Callable[[], Made]], compiler: _OpenVinoCompiler, say: Callable[[str], None]
) -> dict[str, Made]:
    """Returns what each function in ``makers`` makes of a network, by name. Prints why one of them fails."""
    found = {}
    for name, make in makers.items():
        try:
            with _quiet(), torch.no_grad():
                found[name] = make()
        except SameAsFp32 as same:
            say(f"{name}: {same}")
        except Exception as error:  # whatever an exporter does not bear
            reason = str(error).strip().partition("\n")[0][:200]
            say(f"{name} does not take part: {type(error).__name__}: {reason}")
    if OPENVINO_AS_IT_COMPILES in found:
        say(f"{OPENVINO_AS_IT_COMPILES}: {compiler.default}")
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


def _openvino_throughput(compiled: Any, images: Tensor) -> Throughput:
    import openvino

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


def _openvino(compiled: Any, images: Tensor) -> Run:
    request = compiled.create_infer_request()
    given = [images.numpy()]
    return lambda: request.infer(given, share_inputs=True, share_outputs=True)


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
