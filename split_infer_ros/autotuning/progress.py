"""How far a search is, for code that shows it."""

from __future__ import annotations

from dataclasses import dataclass

from split_infer_ros.measurements.record import Record


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search is.

    Attributes:
        stage: ``network`` or ``pipeline``.
        num_trials: the number of trials so far, those of earlier searches included.
        space_size: how many configurations the space has.
        record: the record of the trial just made; None at the end of the search.
        best: the best record so far; None while there is none.
        default: the record of the configuration that runs untuned; None while there is none.
    """

    stage: str
    num_trials: int
    space_size: int
    record: Record | None
    best: Record | None
    default: Record | None
