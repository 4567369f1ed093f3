"""Records how a rival served a trace of requests: when each request was served, and in which executions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

TAIL = 99  # percent


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of one or several models.

    Attributes:
        counts: the number of requests of each model.
        on_lane: whether the execution ran on a lane of one core, not on all cores.
        is_stacked: whether its models ran as one network.
    """

    counts: Mapping[str, int]
    on_lane: bool = False
    is_stacked: bool = False

    @property
    def is_merged(self) -> bool:
        """True if the execution serves more than one request of a model."""
        return max(self.counts.values()) > 1

    @property
    def is_fused(self) -> bool:
        """True if the execution runs several models."""
        return len(self.counts) > 1


@dataclass
class Log:
    """Records how a rival served a trace of requests. Times are in seconds from the start of the trace.

    Attributes:
        arrival_s: when each request came, by its number.
        start_s: when each request's execution began, by the request's number.
        end_s: when each request's execution ended, by the request's number.
        executions: all executions, in the order of their starts.
    """

    arrival_s: dict[int, float] = field(default_factory=dict)
    start_s: dict[int, float] = field(default_factory=dict)
    end_s: dict[int, float] = field(default_factory=dict)
    executions: list[Execution] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        """The requests served per second, from the first arrival to the last end."""
        return len(self.end_s) / (max(self.end_s.values()) - min(self.arrival_s.values()))

    @property
    def delays_s(self) -> list[float]:
        """The queueing delay of each request in seconds: from its arrival to the start of its execution."""
        return [start - self.arrival_s[number] for number, start in self.start_s.items()]

    @property
    def executions_s(self) -> list[float]:
        """The execution time of each request in seconds: from the start to the end of its execution."""
        return [end - self.start_s[number] for number, end in self.end_s.items()]

    @property
    def responses_s(self) -> list[float]:
        """The response time of each request in seconds: its queueing delay plus its execution time."""
        return [end - self.arrival_s[number] for number, end in self.end_s.items()]

    def times(self) -> dict[str, float]:
        """Returns figures by name: ``per_second``, and for execution, delay and response the mean and p99 in seconds.

        The names of the latter are such as ``delay_mean_s`` and ``delay_p99_s``.
        """
        figures = {"per_second": self.per_second}
        kinds = {"execution": self.executions_s, "delay": self.delays_s, "response": self.responses_s}
        for name, seconds in kinds.items():
            figures[f"{name}_mean_s"], figures[f"{name}_p99_s"] = _mean_and_tail(seconds)
        return figures

    def counts(self) -> dict[str, int]:
        """Returns how many executions there were, by kind."""
        return {
            "executions": len(self.executions),
            "merged": sum(execution.is_merged for execution in self.executions),
            "fused": sum(execution.is_fused for execution in self.executions),
            "stacked": sum(execution.is_stacked for execution in self.executions),
            "on_lanes": sum(execution.on_lane for execution in self.executions),
        }


def _mean_and_tail(seconds: Sequence[float]) -> tuple[float, float]:
    return float(np.mean(seconds)), float(np.percentile(seconds, TAIL))
