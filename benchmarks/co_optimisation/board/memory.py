"""Fits how much memory a program takes to Table I of paper 003."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from split_infer_ros.buffers.policy import Policy

REGIONS = {Policy.DEVICE: 2, Policy.MANAGED: 1, Policy.PINNED: 1}  # how often the data is there (section II-B)


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a board that runs one program several times.

    Attributes:
        base_mb: what is taken without a program, in MB.
        data_mb: the data of one instance, in MB.
    """

    base_mb: float
    data_mb: float

    def peak_mb(self, instances: int, policy: Policy) -> float:
        """Returns the peak memory of some instances under a policy, in MB."""
        return self.base_mb + instances * REGIONS[policy] * self.data_mb


def fit_memory(peaks: Mapping[Policy, Sequence[float | None]]) -> Memory:
    """Fits base and data to the peaks of one, two and more instances under each policy. None is left out."""
    regions, found = [], []
    for policy, by_count in peaks.items():
        for count, peak in enumerate(by_count, 1):
            if peak is not None:
                regions.append((1.0, float(count * REGIONS[policy])))
                found.append(peak)
    base_mb, data_mb = np.linalg.lstsq(np.array(regions), np.array(found), rcond=None)[0]
    return Memory(float(base_mb), float(data_mb))
