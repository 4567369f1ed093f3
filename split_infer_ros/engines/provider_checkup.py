"""Says which providers ONNX Runtime has on this machine, and which devices OpenVINO finds."""

from __future__ import annotations

from split_infer_ros.engines.engine import GPU_PROVIDERS, PROVIDER_SUFFIX, Engine, providers_of
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.gpu_files import has_nvidia_driver
from split_infer_ros.telemetry.checkup import Finding, Level

KINDS = {Engine.ONNXRUNTIME: "Providers", Engine.OPENVINO: "Devices"}


def check_providers() -> list[Finding]:
    """Returns lines of a check-up: the providers of ONNX Runtime and the devices of OpenVINO, if installed.

    A user can name each of them in ``engine: NAME:PROVIDER``.
    """
    return [_finding(engine, kind) for engine, kind in KINDS.items() if engine.is_installed]


def _finding(engine: Engine, kind: str) -> Finding:
    what = f"{kind} of {engine.value}"
    try:
        names = [name.removesuffix(PROVIDER_SUFFIX) for name in providers_of(engine).values()]
    except (ConfigurationError, RuntimeError) as error:  # the engine, or a driver, cannot be loaded
        advice = f"install {engine.value} anew, and the drivers of its devices."
        return Finding(Level.NOTE, what, f"cannot be listed ({error})", advice)
    if engine is Engine.ONNXRUNTIME and has_nvidia_driver() and not set(GPU_PROVIDERS) & set(names):
        advice = "for ONNX files on this GPU, install onnxruntime-gpu instead, or set engine to torch."
        return Finding(Level.NOTE, what, f"{', '.join(names)}, and none for this machine's GPU", advice)
    return Finding(Level.OK, what, ", ".join(names))
