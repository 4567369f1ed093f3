"""Reads the trace file that a backbone writes: when each stage worked on each batch.

Its times are those of the steady clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LAST_ROW = "postprocess"
POLL_S = 0.002

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Batch:
    """When the stages worked on a batch, in seconds of the steady clock.

    Attributes:
        frames: the number of frames in the batch.
        backbone, head: when the backbone and the head began and ended their work.
        delivered: when the batch's detections were published.
    """

    frames: int
    backbone: Span
    head: Span
    delivered: float

    @property
    def hop_s(self) -> float:
        """The seconds from the end of the backbone to the start of the head. Meanwhile, the handle is made and sent."""
        return self.head[0] - self.backbone[1]


class Trace:
    """Reads a trace file while a backbone writes it.

    Attributes:
        batches: all batches that were read so far.
    """

    def __init__(self, path: Path) -> None:
        self.batches: list[Batch] = []
        self._path = path
        self._offset = 0
        self._rows: dict[int, str] = {}
        self._spans: dict[str, Span] = {}

    def read(self) -> int:
        """Reads what was written since the last call. Returns how many batches ``batches`` has now."""
        with self._path.open(encoding="utf-8") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        self._offset += len(whole.encode())
        for line in whole.splitlines():
            if line.startswith("{"):
                self._add_event(json.loads(line.rstrip(",")))
        return len(self.batches)

    def wait_for(self, count: int, timeout_s: float) -> None:
        """Waits until ``batches`` has ``count`` batches.

        Raises:
            RuntimeError: there are fewer batches after ``timeout_s`` seconds.
        """
        end = time.monotonic() + timeout_s
        while self.read() < count:
            if time.monotonic() > end:
                raise RuntimeError(f"{self._path.name} has {len(self.batches)} batches, not {count}.")
            time.sleep(POLL_S)

    def between(self, begin: float, end: float) -> list[Batch]:
        """Returns the batches in flight at any time between ``begin`` and ``end``."""
        self.read()
        return [batch for batch in self.batches if batch.backbone[0] < end and batch.delivered > begin]

    def _add_event(self, event: dict[str, object]) -> None:
        if event.get("name") == "thread_name":
            self._rows[event["tid"]] = event["args"]["name"]  # type: ignore[index]
        elif event["ph"] == "X":
            row, start = self._rows[event["tid"]], event["ts"] / 1e6  # type: ignore[index,operator]
            self._spans[row] = (start, start + event["dur"] / 1e6)  # type: ignore[operator]
            if row == LAST_ROW:
                frames = event["args"]["frames"]  # type: ignore[index]
                spans = self._spans
                self.batches.append(Batch(frames, spans["backbone"], spans["head"], spans[row][1]))


def busy(batches: Sequence[Batch], begin: float, end: float) -> dict[str, float]:
    """Returns the share of the time from ``begin`` to ``end`` in which each stage worked, from 0 to 1."""

    def share(spans: Sequence[Span]) -> float:
        work = sum(max(0.0, min(last, end) - max(first, begin)) for first, last in spans)
        return min(1.0, work / (end - begin))  # the times in a trace are rounded

    return {
        "backbone_busy": share([batch.backbone for batch in batches]),
        "head_busy": share([batch.head for batch in batches]),
    }
