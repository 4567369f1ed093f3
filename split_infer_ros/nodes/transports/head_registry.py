"""Decides which head on another host gets the batches. It is a pure policy: callers pass the time."""

from __future__ import annotations

FORGET_AFTER_S = 60.0


class HeadRegistry:
    """Registers heads by their heartbeats. One of them is active and the others stand by.

    The active head stays active until it leaves, or until it is dead while another head is alive. So a single head
    whose heartbeat is late, for example on a busy machine, still gets the batches. Times are seconds of the steady
    clock.

    Args:
        timeout_s: a head is regarded as dead if it has sent no heartbeat for this many seconds.

    Attributes:
        active: the head that gets the batches; empty while there is none.
    """

    def __init__(self, timeout_s: float) -> None:
        self.active = ""
        self._timeout_s = timeout_s
        self._heartbeats: dict[str, float] = {}  # the time of each head's last one, in the order in which heads came

    @property
    def num_heads(self) -> int:
        """How many heads are registered, dead ones included until they are forgotten."""
        return len(self._heartbeats)

    def heartbeat(self, head: str, now: float) -> None:
        """Registers a head, or notes that a registered head is alive at the time ``now``."""
        self._heartbeats[head] = now
        self.update(now)

    def remove(self, head: str, now: float) -> None:
        """Removes a head that said that it leaves. If it was active, another living head becomes active."""
        self._heartbeats.pop(head, None)
        if head == self.active:
            self.active = ""
        self.update(now)

    def update(self, now: float) -> None:
        """Chooses the active head again. Forgets heads that have been silent for more than ``FORGET_AFTER_S``.

        If the active head is dead, the living head that came first becomes active. If none is alive, nothing changes.
        """
        alive = [head for head, last in self._heartbeats.items() if now - last <= self._timeout_s]
        if alive and self.active not in alive:
            self.active = alive[0]
        self._heartbeats = {head: last for head, last in self._heartbeats.items() if now - last <= FORGET_AFTER_S}
