"""The functions that a served model calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from split_infer_ros.models.detections import Detections
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.frame import Handle

Served = TypeVar("Served")  # a ``ServedModel``, whose module imports this one


@dataclass(frozen=True)
class Callbacks(Generic[Served]):
    """The functions that a served model calls, on threads of its own.

    Attributes:
        deliver: called with the model, a batch's handle, the index of a frame in the batch, and the frame's detections.
            It must not raise.
        watch: called with the model and each batch that its head worked on.
        on_error: called with the model's key and an exception: an error that cost frames, or a ``Notice``.
        note_lanes: called with the model once its batches may use lanes, with the server's lock held.
    """

    deliver: Callable[[Served, Handle, int, Detections], None]
    watch: Callable[[Served, Batch], None]
    on_error: Callable[[str, Exception], None]
    note_lanes: Callable[[Served], None]
