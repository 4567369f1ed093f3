"""Measures the costs of several models at once, for tests of runners."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from split_infer_ros.server.costs.cost_measurer import ExecutionRunner, time_execution
from split_infer_ros.server.schedule.execution_costs import (
    Combination,
    ExecutionCosts,
    combination_of,
    fusable_combinations,
)
from split_infer_ros.split.model import SplitModel


def measure_costs(
    models: Mapping[str, SplitModel], runner: ExecutionRunner, *, sizes: Sequence[int], rounds: int
) -> ExecutionCosts:
    """Returns median costs of each model's batches, and of all combinations of models that may be fused.

    Args:
        models: the models, by name.
        runner: runs the executions. It has loaded these models.
        sizes: the sizes of batches of one model.
        rounds: the number of samples of each execution.
    """
    parameters = {name: model.network.num_parameters() for name, model in models.items()}
    blank_images = {name: model.blank_images for name, model in models.items()}
    fusable = list(fusable_combinations(parameters))

    def median_s(combination: Combination) -> float:
        samples_s: list[float] = []
        for _ in time_execution(blank_images, runner, combination, rounds=rounds, add_sample=samples_s.append):
            pass
        return statistics.median(samples_s)

    return ExecutionCosts(
        parameters,
        {name: {size: median_s(combination_of({name: size})) for size in sizes} for name in models},
        {combination: median_s(combination) for combination in fusable},
    )
