"""Several kinds of rivals of one model, one kind after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from split_infer_ros.server.improving.rivals import Rival, Rivals, TakeImage
from split_infer_ros.server.improving.turns import Verdict
from split_infer_ros.split.model import SplitModel
from split_infer_ros.telemetry.heat import Processor


class RivalsInTurn:
    """Proposes the rivals of one kind until that kind has none left, then those of the next kind. It is a ``Rivals``.

    A later kind may need what an earlier one found: the split point is chosen for the engine that won.

    Args:
        kinds: the kinds of rivals, in their order; at least one.
    """

    def __init__(self, kinds: Sequence[Rivals]) -> None:
        self._kinds = tuple(kinds)
        self._present = 0  # the kind that proposes now

    @property
    def summary(self) -> str:
        """What all kinds have found, in words; empty if there was nothing to try."""
        return "; ".join(summary for summary in (kind.summary for kind in self._kinds) if summary)

    def next(
        self, model: SplitModel, split_point: str, is_over: Callable[[], bool], take_image: TakeImage
    ) -> Rival | None:
        """Returns the next rival of the present kind, or else of a later one; see ``Rivals.next``."""
        while not is_over():
            kind = self._kinds[self._present]
            rival = kind.next(model, split_point, is_over, take_image)
            if rival is not None or is_over():
                return rival
            if self._present == len(self._kinds) - 1:
                return None
            kind.close()  # its process would hold memory for nothing
            self._present += 1
        return None

    def settle(self, verdict: Verdict) -> None:
        """Records what turns on live frames have shown about the latest rival."""
        self._kinds[self._present].settle(verdict)

    def refuse(self, reason: str) -> None:
        """Notes that the latest rival cannot serve. ``reason`` is a sentence."""
        self._kinds[self._present].refuse(reason)

    def again(self, hot: Processor | None) -> None:
        """Begins anew with the first kind, because a processor has become too hot, or has cooled."""
        self._kinds[self._present].close()
        self._present = 0
        for kind in self._kinds:
            kind.again(hot)

    def interrupt(self) -> None:
        """Ends a trial that is under way, from any thread."""
        for kind in self._kinds:
            kind.interrupt()

    def close(self) -> None:
        """Frees what trials needed."""
        for kind in self._kinds:
            kind.close()
