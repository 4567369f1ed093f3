"""Stand-ins for OpenVINO's devices, which compute on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Device:
    """What a device says of itself, and what it does with a precision.

    Attributes:
        capabilities: the precisions that it has, in OpenVINO's spelling.
        lacks: properties that it does not take, and refuses if they are given.
        runs_in: the precision in which it computes, whatever is asked; None for what is asked.
        compiled_with: the properties of each model that was compiled for it.
    """

    capabilities: tuple[str, ...] = ("FP32", "FP16")
    lacks: tuple[str, ...] = ("INFERENCE_NUM_THREADS", "ENABLE_CPU_PINNING")
    runs_in: str | None = None
    compiled_with: list[dict[str, Any]] = field(default_factory=list)


def pretend_devices(monkeypatch: pytest.MonkeyPatch, devices: Mapping[str, Device]) -> None:
    """Makes OpenVINO find these devices beside the CPU."""
    openvino = pytest.importorskip("openvino")
    real = openvino.Core

    class Compiled:
        def __init__(self, compiled: Any, hint: str) -> None:
            self._compiled, self._hint = compiled, hint

        def get_property(self, name: str) -> Any:
            return (
                getattr(openvino.Type, self._hint)
                if name == "INFERENCE_PRECISION_HINT"
                else self._compiled.get_property(name)
            )

        def create_infer_request(self) -> Any:
            return self._compiled.create_infer_request()

    class Core:
        def __init__(self) -> None:
            self._core = real()
            self.available_devices = ["CPU", *devices]

        def read_model(self, *arguments: Any) -> Any:
            return self._core.read_model(*arguments)

        def get_property(self, device: str, name: str) -> Any:
            if device not in devices:
                return self._core.get_property(device, name)
            if name == "OPTIMIZATION_CAPABILITIES":
                return list(devices[device].capabilities)
            told = self._core.get_property("CPU", name)
            return {key: value for key, value in told.items() if key not in devices[device].lacks}

        def compile_model(self, model: Any, device: str, properties: Mapping[str, Any]) -> Any:
            if device not in devices:
                return self._core.compile_model(model, device, properties)
            surplus = set(properties) & set(devices[device].lacks)
            if surplus:
                raise RuntimeError(f"Unsupported property {sorted(surplus)[0]}")
            devices[device].compiled_with.append(dict(properties))
            hint = devices[device].runs_in or properties["INFERENCE_PRECISION_HINT"]
            return Compiled(self._core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}), hint)

    monkeypatch.setattr(openvino, "Core", Core)
