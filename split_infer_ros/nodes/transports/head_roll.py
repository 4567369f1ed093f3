"""Which heads on other hosts are there, and which of them has the batches: pure policy, time is passed in."""

from __future__ import annotations

FORGOTTEN_S = 60.0


class HeadRoll:
    """Knows heads by what they say of themselves; one of them is active, the others stand by.

    The active head stays active until it leaves, or has been silent for a while in which another was heard. So a single
    head that is late, on a busy machine say, loses nothing. Times are seconds of the steady clock.

    Args:
        silent_s: a head that said nothing for so long is taken for dead.

    Attributes:
        active: the head that has the batches; empty while there is none.
    """

    def __init__(self, silent_s: float) -> None:
        self.active = ""
        self._silent_s = silent_s
        self._heard: dict[str, float] = {}  # by head, in the order in which they came

    def hear(self, head: str, now: float) -> None:
        """A head says that it is there."""
        self._heard[head] = now
        self.look(now)

    def leave(self, head: str, now: float) -> None:
        """A head takes no more batches."""
        self._heard.pop(head, None)
        if head == self.active:
            self.active = ""
        self.look(now)

    def look(self, now: float) -> None:
        """Have the active head replaced if it is dead: by the one of the others that came first."""
        alive = [head for head, heard in self._heard.items() if now - heard <= self._silent_s]
        if alive and self.active not in alive:
            self.active = alive[0]
        self._heard = {head: heard for head, heard in self._heard.items() if now - heard <= FORGOTTEN_S}
