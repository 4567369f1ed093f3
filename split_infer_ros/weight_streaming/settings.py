"""The settings with which a user chooses where the weights of a partition are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from split_infer_ros.setting import MEGABYTES, MILLISECONDS, check_settings, setting
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.ring_size import AllowedDelay


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSettings:
    """Says where the weights of a partition are: in memory, or in a file that is read while the partition runs.

    A name gives its unit: bytes, or seconds (``_s``). Infinite bytes mean no limit.

    Raises:
        ConfigurationError: a value is not accepted.
    """

    PURPOSE: ClassVar[str] = "Streamed weights"

    weights_residency: Residency = setting(
        Residency.RESIDENT,
        "Where this partition's weights are: resident in memory, or streamed from a packed file layer by layer: "
        "synchronous (two buffers in lockstep), asynchronous (a ring buffer), two_stage (the smallest ring buffer), "
        "auto (the least memory that causes no more delay than allowed).",
    )
    weights_budget_bytes: float = setting(
        math.inf,
        "The most memory for streamed weights. Settings that need more are refused. 0: no limit.",
        minimum=0.0,
        maximum=1e12,
        unit=MEGABYTES,
    )
    weights_delay_s: float = setting(
        1e-3,
        "How many milliseconds weights_residency auto may delay a batch to save memory.",
        minimum=0.0,
        maximum=60.0,
        unit=MILLISECONDS,
    )
    weights_delay_share: float = setting(
        0.0,
        "The share of a batch's time by which weights_residency auto may delay it, if that is longer than "
        "weights_delay_ms. 0.01 is one hundredth. 0: only weights_delay_ms counts.",
        minimum=0.0,
        maximum=100.0,
    )
    weights_file: str = setting(
        "",
        "The packed file of streamed weights, made for the partition's number of cores and batch size. Empty: a file "
        "in the user's cache folder, which is made when needed.",
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def allowed_delay(self) -> AllowedDelay:
        """How much longer a pass may take with ``weights_residency`` ``auto`` than with resident weights."""
        return AllowedDelay(self.weights_delay_s, self.weights_delay_share)
