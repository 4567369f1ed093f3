"""The keys under which the database keeps the costs of executions."""

from __future__ import annotations

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.precision import Precision
from split_infer_ros.measurements.record import Record
from split_infer_ros.split.model import SplitModel
from split_infer_ros.telemetry.machine import engine_version

CostKey = tuple[tuple[str, int], ...]  # like a Combination, but with a description of each model in place of its name


def engine_text_of(model: SplitModel) -> str:
    """Returns the end of a variant's name: an engine other than torch, with its version, and a precision but fp32."""
    config = model.execution_config
    end = ""
    if config.engine is not Engine.TORCH:
        end += f" on {config.engine_text} {engine_version(config.engine.value)}"
    if config.precision is not Precision.FP32:
        end += f" in {config.precision.value}"
    return end


def cost_key_of(record: Record) -> CostKey:
    """Returns the cost key of a record; empty if the record's config has another format."""
    try:
        return tuple((str(model), int(count)) for model, count in record.config["batches"])
    except (KeyError, TypeError, ValueError):
        return ()
