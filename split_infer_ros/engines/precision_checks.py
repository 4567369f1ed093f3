"""Says which precisions an engine has, and in which precisions this machine's processor is fast."""

from __future__ import annotations

from collections.abc import Iterable

from split_infer_ros.engines.engine import AUTO, Engine, engine_text, is_for_gpu, parse_engine
from split_infer_ros.engines.openvino_device import check_on_device
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.device import Device
from split_infer_ros.telemetry.machine import cpu_extensions, cpu_name, onednn_limit

TENSORRT = "tensorrt"  # the provider of ONNX Runtime, in lower case
OPENVINO_BF16 = ("avx512_bf16", "amx_bf16")  # OpenVINO computes in bf16 on processors with one of these
VNNI = ("avx512_vnni", "avx_vnni")  # processors with one of these add products of int8 in 32 bits
LIMITS_WITH_16_BITS = ("BF16", "FP16", "AMX", "AVX10", "DEFAULT", "ALL")  # parts of the names of oneDNN's limits
# int8 has no row: against fp32, OpenVINO runs `shapes` 1.7 times as fast on AVX2 alone, and 2.9 times with VNNI.
EXTENSIONS = {  # without any of these, torch is slower in the precision than in fp32
    Precision.FP16: ("avx512_fp16", "amx_fp16", "asimdhp"),
    Precision.BF16: (*OPENVINO_BF16, "bf16"),
}


def keeps_float32(engine: Engine, provider: str) -> bool:
    """Returns whether an engine takes and gives float32 in every precision. Such an engine converts values itself."""
    return engine is Engine.OPENVINO or provider.lower() == TENSORRT


def precisions_of(engine: Engine, provider: str, *, is_file: bool = False) -> tuple[Precision, ...]:
    """Returns the precisions that an engine has on at least some machines; see ``check_precision`` for this machine.

    Args:
        engine, provider: as ``parse_engine`` returns them.
        is_file: whether the model is an ONNX file. Its float32 values stay float32 unless the engine converts them.
    """
    on_gpu = is_for_gpu(engine, provider) and (keeps_float32(engine, provider) or not is_file)
    if engine is Engine.TORCH or on_gpu or (engine is Engine.OPENVINO and provider):
        return (Precision.FP32, Precision.FP16, Precision.BF16)
    if engine is Engine.OPENVINO:  # int8 is calibrated and compared on the CPU
        return (Precision.FP32, Precision.BF16, Precision.INT8)
    return (Precision.FP32,)


def check_precision(precision: Precision, engine: Engine, provider: str, *, is_file: bool = False) -> None:
    """Checks that an engine computes in a precision on this machine.

    torch passes this check in 16 bits on any processor, even if it is slow there; see ``is_made_for``.

    Args:
        precision: the wanted precision.
        engine, provider, is_file: as for ``precisions_of``.

    Raises:
        ConfigurationError: the engine does not compute in the precision.
    """
    name, possible = engine_text(engine, provider), precisions_of(engine, provider, is_file=is_file)
    if precision not in possible:
        names = " or ".join(each.value for each in possible)
        what = "an ONNX file" if is_file else "a network"
        raise ConfigurationError(f"engine {name} computes {what} in {names}, not in {precision.value}.")
    if engine is Engine.OPENVINO and provider:
        check_on_device(precision, provider)
    elif engine is Engine.OPENVINO and precision is Precision.BF16 and not can_use_any(OPENVINO_BF16):
        limit = onednn_limit()
        reason = f"oneDNN is limited to {limit} here" if limit else f"{cpu_name()} has neither"
        raise ConfigurationError(
            f"engine {name} computes in bf16 on processors with {' or '.join(OPENVINO_BF16)}, and {reason}."
        )


def wants_torch(engine: str, precisions: Iterable[Precision]) -> bool | None:
    """Says whether a user's choices need a torch model or an ONNX file, if both exist.

    Args:
        engine: the engine, as a text for ``parse_engine``, or ``auto``.
        precisions: the precisions that the user accepts.

    Returns:
        True for a torch model, False for an ONNX file, None if both are possible. Both are possible with ``auto``, with
        int8, and with a precision that the engine has only for torch models. In int8, the engine runs a graph that was
        quantised from a model.

    Raises:
        ConfigurationError: there is no such engine.
    """
    if engine == AUTO:
        return None
    name, provider = parse_engine(engine)
    if name is Engine.TORCH:
        return True
    of_torch = {*precisions_of(name, provider)} - {*precisions_of(name, provider, is_file=True)} | {Precision.INT8}
    return False if of_torch.isdisjoint(precisions) else None


def has_vnni() -> bool:
    """Returns whether the processor adds products of int8 in 32 bits, and oneDNN is not limited to less."""
    return not onednn_limit() and not cpu_extensions().isdisjoint(VNNI)


def is_made_for(precision: Precision, device: Device) -> bool:
    """Returns whether a device should be faster in a precision than in fp32. For a GPU, the result is always True."""
    extensions = EXTENSIONS.get(precision, ())
    return device.type != "cpu" or not extensions or can_use_any(extensions)


def can_use_any(extensions: Iterable[str]) -> bool:
    """Returns whether the processor has one of these extensions for 16 bits, and oneDNN is not limited to less."""
    limit = onednn_limit()
    is_allowed = not limit or any(name in limit for name in LIMITS_WITH_16_BITS)
    return is_allowed and not cpu_extensions().isdisjoint(extensions)
