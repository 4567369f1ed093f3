"""Shares a CPU's cores among the models of one execution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoreShare:
    """Models that run one after the other on the same cores.

    Attributes:
        models: the names of the models, in the order in which they run.
        num_threads: number of cores, with one thread each.
    """

    models: tuple[str, ...]
    num_threads: int


def share_cores(work_s: Mapping[str, float], num_threads: int) -> tuple[CoreShare, ...]:
    """Divides models and cores into shares that end at about the same time. The share with the most work comes first.

    With more models than cores, each model goes to the share with the least work, the longest model first. With more
    cores than models, each further core goes to the share that would take the longest.

    Args:
        work_s: the seconds that each model's batch takes on one core.
        num_threads: number of cores, at least 1.
    """
    num_shares = min(num_threads, len(work_s))
    models: list[list[str]] = [[] for _ in range(num_shares)]
    share_work_s = [0.0] * num_shares
    for model in sorted(work_s, key=lambda model: (-work_s[model], model)):
        lightest = share_work_s.index(min(share_work_s))
        models[lightest].append(model)
        share_work_s[lightest] += work_s[model]
    threads = [1] * num_shares
    for _ in range(num_threads - num_shares):
        slowest = max(range(num_shares), key=lambda share: share_work_s[share] / threads[share])
        threads[slowest] += 1
    order = sorted(range(num_shares), key=lambda share: -share_work_s[share])
    return tuple(CoreShare(tuple(models[share]), threads[share]) for share in order)
