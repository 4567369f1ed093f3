"""Compares the engines once for a model, a precision and a batch size, so that engine ``auto`` needs no tuning."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from split_infer_ros.autotuning.tasks import network_task
from split_infer_ros.autotuning.trial_process import TrialProcess, TrialRunner
from split_infer_ros.autotuning.tune import Tuner
from split_infer_ros.engines.engine import AUTO, Engine
from split_infer_ros.engines.precision import Precision
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.runtime.num_threads import fewer_than_all
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_engines import engines_for
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.weight_streaming.residency import Residency

MAX_COMPARISON_S = 30.0


def open_engines(wanted: str, residency: Residency) -> tuple[str, ...]:
    """Returns the engines that a user's choice leaves open; empty if it leaves all open.

    Args:
        wanted: the parameter ``engine``.
        residency: where the weights are. Only torch streams weights.
    """
    if residency is not Residency.RESIDENT:
        return (Engine.TORCH.value,)
    return () if wanted == AUTO else (wanted,)


def measured_configs(
    model: SplitModel, database: Database, precision: Precision, batch_size: int
) -> list[Mapping[str, Any]]:
    """Returns the configurations in which this machine has measured a network in a precision and at a batch size."""
    found = database.find(Key.here(str(model.device)), network_task(model, batch_size))
    return [record.config for record in found if record.config.get("precision") == precision.value]


def compare_engines_once(
    model: SplitModel,
    spec: ModelSpec,
    database: Database,
    *,
    precision: Precision,
    batch_size: int,
    say: Callable[[str], object],
    seconds: float = MAX_COMPARISON_S,
    open_runner: Callable[[ModelSpec], AbstractContextManager[TrialRunner]] = TrialProcess,
) -> None:
    """Times the network with each engine in a trial process, unless this machine has done so before.

    Args:
        model: the model on its device.
        spec: the model spec by which the process loads the model.
        database: keeps the results.
        precision: the precision of the backbone.
        batch_size: images per batch.
        say: called with a line before the comparison and with another line that tells the results.
        seconds: how long the comparison may take after the process has loaded the model.
        open_runner: makes the trial process.

    Raises:
        ConfigurationError: the process cannot be started.
    """
    engines = engines_for(model, precision)
    if len(engines) < 2 or measured_configs(model, database, precision, batch_size):
        return
    say(
        f"comparing the engines {', '.join(engines)} for {model.entry.name} in {precision.value}, once on this "
        f"machine, for at most {seconds:g} s; set the parameter engine to skip this"
    )
    with open_runner(spec) as runner:
        runner.start()
        tuner = Tuner(model, runner, database, precisions=(precision,), batch_size=batch_size, engines=engines)
        records = tuner.compare_engines(time.monotonic() + seconds)
    say(f"{model.entry.name} in {precision.value} at batch size {batch_size}: {describe_comparison(records)}")


def describe_comparison(records: Sequence[Record]) -> str:
    """Says in words how long a batch takes with each engine, the fastest first, and why an engine cannot be used.

    If an engine's results differ from those of the model as built, the text says by how much.
    """
    timed = sorted((record for record in records if record.error is None), key=lambda record: record.median_s)
    parts = [f"{name_of(record.config)} {1e3 * record.median_s:.1f} ms{_difference(record)}" for record in timed]
    for record in records:
        if record.error is not None:
            reason = record.error.partition(": ")[2] or record.error  # without the name of the exception
            parts.append(f"{name_of(record.config)} is not used ({reason.rstrip('.')})")
    return "; ".join(parts) or "there was no time to compare engines"


def _difference(record: Record) -> str:
    told = record.facts.get("differs")
    return f" (differs: {told})" if told and record.facts.get("difference") else ""


def name_of(config: Mapping[str, Any]) -> str:
    """Returns the name of a configuration for the user: its engine, fewer threads, and the micro-batch."""
    threads, micro_batch = fewer_than_all(config.get("threads", 0)), config.get("micro_batch", 0)
    name = str(config["engine"])
    if threads:
        name += f" with {threads} thread{'s' if threads > 1 else ''}"
    return f"{name} in micro-batches of {micro_batch}" if micro_batch else name
