"""Says in which precisions each installed engine computes on this machine's processor."""

from __future__ import annotations

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.precision_checks import check_precision, is_made_for, precisions_of
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.device import CPU
from split_infer_ros.telemetry.checkup import Finding, Level
from split_infer_ros.telemetry.machine import instruction_set


def check_precisions() -> list[Finding]:
    """Returns lines of a check-up: the processor's instruction sets, and each installed engine's precisions."""
    engines = [_finding(engine) for engine in Engine if engine.is_installed]
    return [Finding(Level.OK, "Instruction sets", instruction_set()), *engines]


def _finding(engine: Engine) -> Finding:
    names, objections = [], []
    for precision in precisions_of(engine, ""):
        try:
            check_precision(precision, engine, "")
        except ConfigurationError as error:
            objections.append(f"; {precision.value} is missing: {error}")
            continue
        is_slow = engine is Engine.TORCH and not is_made_for(precision, CPU)
        names.append(f"{precision.value} (slower than fp32 on this processor)" if is_slow else precision.value)
    found = ", ".join(names) + "".join(objections)
    return Finding(Level.OK, f"Precisions of {engine.value} on the CPU", found)
