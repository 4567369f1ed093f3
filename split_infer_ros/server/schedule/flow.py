"""Whether another batch may begin, by what is behind the backbone. It is pure policy."""

from __future__ import annotations

WEIGHT = 0.25  # of the newest sample in a moving average


class Flow:
    """Keeps the age of results low where the head is slower than the backbone.

    A batch that begins too early waits for the head, and its frames grow old. Newer frames would have taken their
    place. So a batch begins once the head will be done with those before it about when this one arrives.
    """

    def __init__(self) -> None:
        self._backbone_s = 0.0
        self._behind_s = 0.0  # 0: not known yet

    def note(self, backbone_s: float, head_s: float, postprocess_s: float) -> None:
        """Notes how long a batch took in each stage, in seconds."""
        behind_s = max(head_s, postprocess_s)  # the two run side by side, on batches of their own
        if not self._behind_s:
            self._backbone_s, self._behind_s = backbone_s, behind_s
        self._backbone_s += WEIGHT * (backbone_s - self._backbone_s)
        self._behind_s += WEIGHT * (behind_s - self._behind_s)

    def admits(self, in_backbone: int, behind: int) -> bool:
        """Returns whether another batch would wait for the head about as long as the head takes for one, or less.

        Args:
            in_backbone: batches that the backbone has.
            behind: batches that were handed over and are not back.
        """
        arrives_s = (1 + in_backbone) * self._backbone_s
        return (in_backbone + behind) * self._behind_s <= arrives_s + self._behind_s
