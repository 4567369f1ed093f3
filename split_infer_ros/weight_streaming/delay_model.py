"""Simulates a pass on a ring buffer of any size, to predict its delay from sizes and times of the layers.

The prefetcher reads a chunk as soon as its part of the ring is free. A layer runs as soon as its weights have been
read (paper: asynchronous and two-stage pipelines). The module is pure: numbers in, seconds out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from split_infer_ros.weight_streaming.ring_plan import RingPlan

PASSES = 4  # after the first passes, each pass is like the one before
BISECTIONS = 20


@dataclass(frozen=True, slots=True)
class StreamingProfile:
    """Measured speed of a partition's layers and of the disk that their weights come from.

    Attributes:
        step_s: seconds of each step.
        tail_s: seconds after the last step.
        bandwidth: of reading, bytes a second.
        read_latency_s: extra seconds of each read, including the hand-over from prefetcher to layer.
    """

    step_s: tuple[float, ...]
    tail_s: float
    bandwidth: float
    read_latency_s: float = 0.0

    @property
    def compute_s(self) -> float:
        """Seconds of a pass that never waits for weights."""
        return sum(self.step_s) + self.tail_s


def predict_delay(plan: RingPlan, profile: StreamingProfile) -> float:
    """Returns the seconds of a pass in a series of passes. Each pass reads ahead for the next one's first layers."""
    chunks_per_pass = len(plan.chunks)
    read_s = [profile.read_latency_s + chunk.nbytes / profile.bandwidth for chunk in plan.chunks]
    free_at: list[float] = []  # when each chunk's part of the ring became free; chunks count over all passes
    ready_at: list[float] = []  # when each chunk had been read
    now = pass_start = read_end = 0.0
    for number in range(PASSES):
        pass_start = now
        for step, seconds in enumerate(profile.step_s):
            needed = number * chunks_per_pass + plan.chunks_needed[step]
            while len(ready_at) < (number + 1) * chunks_per_pass:
                chunk = len(ready_at)
                overwritten = chunk - plan.window[chunk % chunks_per_pass] - 1  # must be free before the read starts
                if overwritten >= len(free_at):
                    break
                read_start = max(read_end, free_at[overwritten] if overwritten >= 0 else 0.0)
                read_end = read_start + read_s[chunk % chunks_per_pass]
                ready_at.append(read_end)
            now = max(now, ready_at[needed - 1] if needed else 0.0) + seconds
            freed = number * chunks_per_pass + plan.chunks_freed[step]
            free_at.extend([now] * (freed - len(free_at)))
        now += profile.tail_s
    return now - pass_start


def fit_latency(profile: StreamingProfile, plan: RingPlan, delay_s: float) -> StreamingProfile:
    """Returns the profile with the read latency that explains a measured delay.

    Args:
        profile: without latency. It is returned unchanged if it predicts at least ``delay_s``.
        plan: of a ring so small that layers wait for reads.
        delay_s: measured seconds of a pass with that plan.
    """
    if predict_delay(plan, profile) >= delay_s:
        return profile
    low, high = 0.0, delay_s / len(plan.chunks)  # with the upper bound, latency alone fills the pass
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if predict_delay(plan, replace(profile, read_latency_s=middle)) < delay_s:
            low = middle
        else:
            high = middle
    return replace(profile, read_latency_s=high)
