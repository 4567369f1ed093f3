"""The keys under which the database keeps what executions cost."""

from __future__ import annotations

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.precision import Precision
from split_infer_ros.measurements.record import Record
from split_infer_ros.split.model import SplitModel
from split_infer_ros.telemetry.machine import engine_version

CostKey = tuple[tuple[str, int], ...]  # like a Combination, but with what a model is in place of its name


def engine_text_of(model: SplitModel) -> str:
    """Returns the end of a variant's name: what is not torch or not fp32, with the version of the engine."""
    config = model.execution_config
    end = ""
    if config.engine is not Engine.TORCH:
        end += f" on {config.engine_text} {engine_version(config.engine.value)}"
    if config.precision is not Precision.FP32:
        end += f" in {config.precision.value}"
    return end


def cost_key_of(record: Record) -> CostKey:
    """Returns the key of a record's cost; empty if the record's config has another format."""
    try:
        return tuple((str(model), int(count)) for model, count in record.config["batches"])
    except (KeyError, TypeError, ValueError):
        return ()
