"""Says in which precisions OpenVINO's devices other than the CPU compute, and which properties they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from split_infer_ros.engines.engine import Engine, engine_text, find_provider, import_for, providers_of
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError

CAPABILITIES = {Precision.FP32: "FP32", Precision.FP16: "FP16", Precision.BF16: "BF16"}  # in OpenVINO's spelling
REQUIRED = ("INFERENCE_PRECISION_HINT",)  # a device that does not know this property could compute in any precision


def check_on_device(precision: Precision, device: str) -> None:
    """Asks a device of OpenVINO whether it computes in a precision.

    A device that is not on this machine is not checked. ``find_provider`` raises an error when the device is used.

    Args:
        precision: the wanted precision.
        device: the device, as ``parse_engine`` returns it; not the CPU.

    Raises:
        ConfigurationError: the device does not compute in the precision, or OpenVINO is not installed.
    """
    if device.lower() not in providers_of(Engine.OPENVINO):
        return
    core = import_for(Engine.OPENVINO, "openvino").Core()
    told = _ask(core, find_provider(Engine.OPENVINO, device), "OPTIMIZATION_CAPABILITIES")
    found = [each.value for each, name in CAPABILITIES.items() if name in told]
    if precision.value not in found:
        raise ConfigurationError(
            f"engine {engine_text(Engine.OPENVINO, device)} computes a network in {' or '.join(found) or 'nothing'} as "
            f"its device says, not in {precision.value}."
        )


def taken_properties(core: Any, device: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties that a device takes. Properties that affect results are always among them.

    Args:
        core: OpenVINO's core.
        device: the device in OpenVINO's spelling.
        properties: the properties for compiling a model.

    Raises:
        ConfigurationError: the device cannot be asked.
    """
    told = _ask(core, device, "SUPPORTED_PROPERTIES")
    return {name: value for name, value in properties.items() if name in REQUIRED or told.get(name) == "RW"}


def _ask(core: Any, device: str, name: str) -> Any:
    try:
        return core.get_property(device, name)
    except Exception as error:  # a failing driver can raise anything
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise ConfigurationError(f"OpenVINO's device {device} does not tell its {name} ({reason}).") from error
