"""The parameter ``max_temperature_c``, set while frames flow, and what ``/diagnostics`` says of the heat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.context import Context
from recorded_sensors import Recording
from ros_pipeline import Pipeline

from split_infer_ros.autotuning.profile_trials import ProfileTrials
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.server.improving import heat_watch

CAMERA = {"width": 64, "height": 48, "rate_hz": 50.0}


def improvement(message: Any) -> str:
    values = {pair.key: pair.value for status in message.status for pair in status.values}
    return str(values.get("improvement", ""))


def refuse(*arguments: Any) -> None:
    raise ConfigurationError("It is never measured.")


def test_diagnostics_tell_sensor_value_bound_and_preference(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensors = Recording(60.0)
    monkeypatch.setattr(heat_watch.Sensors, "find", lambda: sensors)
    monkeypatch.setattr(heat_watch, "PERIOD_S", 0.05)
    monkeypatch.setattr(ProfileTrials, "find", refuse)
    backbone = {"split_point": "auto", "batch_size": 2, "weights": "none", "engine": "torch", "improve": "background"}
    backbone |= {"tuning_database": str(tmp_path / "tuning.jsonl")}
    stats = {"period_s": 0.2}
    with Pipeline(context, stats=stats, head={"weights": "none"}, backbone=backbone, camera=CAMERA) as pipeline:
        found = pipeline.client.subscribe(DiagnosticArray, "/diagnostics")
        for cpu_c, told in (
            (60.0, "cpu-thermal shows 60.0 C, within max_temperature_c 80"),
            (81.5, "cpu-thermal shows 81.5 C, too hot for max_temperature_c 80: what needs less time of the CPU is"),
            (75.0, "cpu-thermal shows 75.0 C, within max_temperature_c 80"),
            (None, "no sensor of a processor's temperature answers, so max_temperature_c 80 has no effect"),
        ):
            sensors.cpu_c = cpu_c
            assert pipeline.client.set("backbone", max_temperature_c=80.0) == [""]
            found.wait_for_one(lambda message, told=told: told in improvement(message), told, 60)
        assert pipeline.client.set("backbone", max_temperature_c=0.0) == [""]
        found.wait_for_one(lambda message: "max_temperature_c" not in improvement(message), "no bound", 60)
        (reason,) = pipeline.client.set("backbone", max_temperature_c=151.0)
        assert "max_temperature_c" in reason
        assert "150" in reason
        pipeline.nodes["camera"].trigger_deactivate()
        counts = pipeline.settled(0)
        assert counts.balanced
        assert set(counts.dropped) <= {"overrun"}
