"""Finds which precisions are worth a try for a model that serves in fp32."""

from __future__ import annotations

from collections.abc import Sequence

from split_infer_ros.autotuning.background_trials import BackgroundTrials
from split_infer_ros.autotuning.int8_rivals import Int8Rivals
from split_infer_ros.autotuning.precision_rivals import PrecisionRivals
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.precision import FASTER, Precision
from split_infer_ros.engines.precision_checks import is_made_for
from split_infer_ros.measurements.database import Database
from split_infer_ros.server.improving.rivals import Rivals
from split_infer_ros.split.model import SplitModel


def precision_rivals(
    trials: BackgroundTrials,
    database: Database,
    model: SplitModel,
    wanted: str,
    engines: Sequence[str],
    min_agreement: float,
) -> list[Rivals]:
    """Returns the kinds of rivals that the parameter ``precision`` asks for; empty if none can be faster here.

    Args:
        trials: runs the trials.
        database: keeps the records.
        model: the model that serves.
        wanted: the parameter ``precision``.
        engines: the engines that may run the model; empty: all.
        min_agreement: how much detections must agree with those in fp32, 0..1; 0: as much as the precision should.
    """
    allowed = FASTER.get(wanted, ())
    in_16_bits = [each for each in allowed if each is not Precision.INT8 and is_made_for(each, model.device)]
    kinds: list[Rivals] = []
    if in_16_bits:
        kinds.append(PrecisionRivals(trials, database, in_16_bits, engines, min_agreement))
    takes_int8 = not engines or Engine.OPENVINO.value in engines
    if Precision.INT8 in allowed and model.device.type == "cpu" and takes_int8:
        kinds.append(Int8Rivals(trials, min_agreement))
    return kinds
