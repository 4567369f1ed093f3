"""Stand-ins for devices of OpenVINO. They compute on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Device:
    """A device that OpenVINO seems to have.

    Attributes:
        capabilities: the precisions that the device claims to have, in OpenVINO's spelling.
        lacks: the properties that the device does not know. Compiling with one of them fails.
        runs_in: the precision that the device reports for compiled models; None for the precision that was asked for.
        compiled_with: the properties of each model that was compiled for the device.
    """

    capabilities: tuple[str, ...] = ("FP32", "FP16")
    lacks: tuple[str, ...] = ("INFERENCE_NUM_THREADS", "ENABLE_CPU_PINNING")
    runs_in: str | None = None
    compiled_with: list[dict[str, Any]] = field(default_factory=list)


def pretend_devices(monkeypatch: pytest.MonkeyPatch, devices: Mapping[str, Device]) -> None:
    """Makes OpenVINO find these devices, by name, beside the CPU. Skips the test if OpenVINO is not installed."""
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
