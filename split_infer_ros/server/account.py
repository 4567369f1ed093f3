"""The account of a stream of frames: what became of them, and how long it took."""

from __future__ import annotations

from dataclasses import dataclass, field

from split_infer_ros.server.ledger import Ledger
from split_infer_ros.server.report import PipelineMeters


@dataclass(slots=True, eq=False)
class Account:
    """Counts and times of the frames of one pipeline or of one tenant."""

    ledger: Ledger = field(default_factory=Ledger)
    meters: PipelineMeters = field(default_factory=PipelineMeters)
