"""Decides whether another batch may begin, from the batches in the backbone and behind it. It is a pure policy."""

from __future__ import annotations

WEIGHT = 0.25  # the weight of the newest sample in a moving average


class Flow:
    """Keeps the age of results low if the head is slower than the backbone.

    A batch that begins too early waits for the head, and its frames grow old. A later batch would have newer frames. So
    a batch begins when it will reach the head at about the time when the head is done with earlier batches.
    """

    def __init__(self) -> None:
        self._backbone_s = 0.0
        self._behind_s = 0.0  # seconds that the slower stage behind the backbone takes for a batch; 0: not known yet

    def note(self, backbone_s: float, head_s: float, postprocess_s: float) -> None:
        """Notes how long a batch took in each stage, in seconds."""
        behind_s = max(head_s, postprocess_s)  # the two stages run side by side, on different batches
        if not self._behind_s:
            self._backbone_s, self._behind_s = backbone_s, behind_s
        self._backbone_s += WEIGHT * (backbone_s - self._backbone_s)
        self._behind_s += WEIGHT * (behind_s - self._behind_s)

    def admits(self, in_backbone: int, behind: int) -> bool:
        """Returns whether another batch may begin now.

        It may if it would wait for the head no longer than the head takes for about one batch.

        Args:
            in_backbone: number of batches in the backbone.
            behind: number of batches that were handed over to the head and have not come back.
        """
        arrives_s = (1 + in_backbone) * self._backbone_s
        return (in_backbone + behind) * self._behind_s <= arrives_s + self._behind_s
