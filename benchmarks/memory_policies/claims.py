"""The claims about memory policies: the error of the overhead model, and the time that its choice of a policy loses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import Estimate, Samples, estimate
from benchmarks.common.report import Panel
from benchmarks.common.rows import finite, in_ms, measured
from benchmarks.common.turns import Contest
from benchmarks.common.usage import MB
from benchmarks.memory_policies.runs import EXECUTION, Case, PolicyRuns, figure
from split_infer_ros.buffers.policy import Policy

MIN_ERROR = 1e-4  # a geometric mean does not bear zeros
GOAL_MEAN, GOAL_WORST, GOAL_LOSS = 5.0, 24.3, 3.0  # %; the worst is the paper's own, whose mean is 9.3 % (section V-B)

Medians = Mapping[str, Samples]  # by figure


class PolicyContest:
    """Runs the tasks under all policies, turn by turn.

    Args:
        runs: runs the tasks of one turn.

    Attributes:
        contest: the contest of the policies.
    """

    def __init__(self, runs: PolicyRuns) -> None:
        self._runs = runs
        self.contest = Contest("policies", runs.turn, lambda _: self.claims())

    def claims(self) -> list[Claim]:
        """Returns the claims about predicted times and about the chosen policies.

        An error is the geometric mean over the sizes of one case and policy, as in Fig. 8 of paper 003. The footprint
        is in rows only. It follows from the policy, so nothing could contradict a claim about it.
        """
        turn_s = self.contest.turn_s
        percent = {
            "predicted response time, off by, mean, of the measured": (self._mean_error, GOAL_MEAN, "9.3 %"),
            "predicted response time, off by, worst case and policy, of the measured": (
                self._worst_error,
                GOAL_WORST,
                "24.3 %",
            ),
            "auto, slower than the best policy at most, of the best one's time": (self._loss, GOAL_LOSS, ""),
        }
        return [
            Claim(
                name,
                self._over_turns(statistic).times(100.0),
                "%",
                goal,
                Direction.AT_MOST,
                turn_s=turn_s,
                paper=paper,
            )
            for name, (statistic, goal, paper) in percent.items()
        ]

    def _over_turns(self, statistic: Callable[[Medians], Samples]) -> Estimate:
        names = list(self.contest.figures)

        def of_turns(*samples: Samples) -> Samples:
            medians = {name: np.median(values, axis=-1) for name, values in zip(names, samples, strict=True)}
            return statistic(medians)

        return estimate(of_turns, *self.contest.figures.values())

    def _mean_error(self, medians: Medians) -> Samples:
        bars = [np.log(self._error(medians, case, policy)) for case in self._runs.cases for policy in self._runs.legal]
        return np.exp(np.mean(bars, axis=0))

    def _worst_error(self, medians: Medians) -> Samples:
        bars = [self._error(medians, case, policy) for case in self._runs.cases for policy in self._runs.legal]
        return np.max(bars, axis=0)

    def _error(self, medians: Medians, case: Case, policy: Policy) -> Samples:
        """Returns the relative error of the prediction, as the geometric mean over the sizes."""
        errors = [
            np.abs(self._predicted_s(medians, case, nbytes, policy) / medians[figure(case, nbytes, policy.value)] - 1)
            for nbytes in case.sizes
        ]
        return np.exp(np.mean(np.log(np.maximum(errors, MIN_ERROR)), axis=0))

    def _predicted_s(self, medians: Medians, case: Case, nbytes: int, policy: Policy) -> Samples:
        overhead = self._runs.choices[case.name, nbytes].overheads[policy]
        return medians[figure(case, nbytes, EXECUTION)] + overhead.total_ms / 1e3

    def _loss(self, medians: Medians) -> Samples:
        losses = []
        for case in self._runs.cases:
            for nbytes in case.sizes:
                times = {policy: medians[figure(case, nbytes, policy.value)] for policy in self._runs.legal}
                chosen = times[self._runs.choices[case.name, nbytes].policy]
                losses.append(chosen / np.min(list(times.values()), axis=0) - 1)
        return np.max(losses, axis=0)

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each case, size and policy."""
        medians = {name: np.median(found) for name, found in self.contest.figures.items()}
        rows = []
        for case in self._runs.cases:
            for nbytes in case.sizes:
                for policy in self._runs.legal:
                    key = figure(case, nbytes, policy.value)
                    predicted_s = float(self._predicted_s(medians, case, nbytes, policy))
                    rows.append(
                        {
                            "what": "policy",
                            "case": case.name,
                            "bytes": nbytes,
                            "policy": policy.value,
                            "auto": self._runs.choices[case.name, nbytes].policy.value,
                            "footprint_bytes": self._runs.footprint_bytes(case, nbytes, policy),
                            **measured(ms=in_ms(self.contest.figures[key])),
                            "predicted_ms": finite(1e3 * predicted_s),
                            "error": finite(abs(predicted_s / float(medians[key]) - 1)),
                            **self._runs.usage.row(key),
                        }
                    )
        return rows

    def panels(self) -> list[Panel]:
        """Returns a panel of response times for each case, at its largest size."""
        return [self._panel(case, max(case.sizes)) for case in self._runs.cases]

    def _panel(self, case: Case, nbytes: int) -> Panel:
        samples = {
            policy.value: [1e3 * value for value in self.contest.figures[figure(case, nbytes, policy.value)]]
            for policy in self._runs.legal
        }
        return Panel(f"response time, {case.name}, {nbytes / MB:.1f} MB", "ms", samples)
