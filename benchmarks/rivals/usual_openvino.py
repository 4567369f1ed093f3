"""Compiles a network with OpenVINO for a CPU as usual programs do: in fp32 by force, or without naming a precision.

If a program names no precision, OpenVINO takes its own default: bf16 on processors with AVX512_BF16 or AMX_BF16. On
other processors, the default can be fp32. Both ways are then the same, and a benchmark runs only the first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.common.yolo_size import HEIGHT, WIDTH
from split_infer_ros.runtime.usage_reports import stop_usage_reports
from split_infer_ros.telemetry.machine import num_cores

FP32, AS_IT_COMPILES = PRECISIONS = ("fp32", "as_it_compiles")
NAMES = {"f32": FP32, "f16": "fp16"}  # OpenVINO's names that differ from this package's
HINT = "INFERENCE_PRECISION_HINT"


def compile_network(core: Any, network: Any, precision: str, *, threads: int, performance: str = "LATENCY") -> Any:
    """Returns a network compiled for the CPU.

    Args:
        core: OpenVINO's ``Core``.
        network: a model of OpenVINO.
        precision: ``FP32``, or ``AS_IT_COMPILES`` to name no precision.
        threads: how many threads compute.
        performance: OpenVINO's performance hint, ``LATENCY`` or ``THROUGHPUT``.
    """
    hints = {"PERFORMANCE_HINT": performance, "INFERENCE_NUM_THREADS": threads}
    if precision == FP32:
        hints[HINT] = "f32"
    return core.compile_model(network, "CPU", hints)


def compile_file(path: Path, precision: str) -> Any:
    """Returns the benchmarks' detector, an ONNX file, compiled for one image, all cores and the lowest latency.

    ``precision`` is one of ``PRECISIONS``.
    """
    stop_usage_reports()
    import openvino

    core = openvino.Core()
    network = core.read_model(path)
    network.reshape([1, 3, HEIGHT, WIDTH])
    return compile_network(core, network, precision, threads=num_cores())


def precision_of(compiled: Any) -> str:
    """Returns the precision in which a compiled network runs, for example fp32 or bf16."""
    name = str(compiled.get_property(HINT).to_string())
    return NAMES.get(name, name)


def compiles_in(path: Path) -> str:
    """Returns the precision in which OpenVINO compiles the benchmarks' detector on this machine if none is named."""
    return precision_of(compile_file(path, AS_IT_COMPILES))
