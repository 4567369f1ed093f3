"""How far a search is, for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass

from split_infer_ros.measurements.record import Record


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search is.

    Attributes:
        stage: ``network`` or ``pipeline``.
        num_trials: trials that were made now or before.
        space_size: how many configurations there are.
        record: the record of the last trial; None if none was made now.
        best: the best record so far; None while there is none.
        default: the record of the configuration that runs untuned; None while there is none.
    """

    stage: str
    num_trials: int
    space_size: int
    record: Record | None
    best: Record | None
    default: Record | None
