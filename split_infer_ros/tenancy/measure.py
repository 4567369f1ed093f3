"""Measures what the scheduler needs to know: batches alone, and models as one execution."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from split_infer_ros.split.model import SplitModel
from split_infer_ros.tenancy.costs import Costs, Group, group
from split_infer_ros.tenancy.engine import Engine

SIZES = (1, 2, 4, 8)


def measure(
    models: Mapping[str, SplitModel],
    engine: Engine,
    sizes: Sequence[int] = SIZES,
    rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> Costs:
    """Medians; every combination of models of one class (§II-B) is measured as one, with one image each and with two.

    Args:
        models: by name; their inputs are blank.
        engine: that runs them.
        sizes: of batches of one model.
        rounds: samples of each; rivals take turns.
        clock: seconds.
    """
    parameters = {name: model.parameters for name, model in models.items()}
    alone = [group({name: size}) for name in models for size in sizes]
    small = Costs(parameters, {}).is_small
    classes = [[name for name in models if small(name)], [name for name in models if not small(name)]]
    fused = [
        group(dict.fromkeys(names, size))
        for of_class in classes
        for length in range(2, len(of_class) + 1)
        for names in itertools.combinations(sorted(of_class), length)
        for size in (1, 2)
    ]
    samples: dict[Group, list[float]] = {}
    for combination in alone + fused:
        inputs = {name: blank(models[name], size) for name, size in combination}
        for turn in range(rounds + 2):  # the first two warm up: kernels are chosen, weights are packed
            begin = clock()
            engine.run(inputs)
            if turn > 1:
                samples.setdefault(combination, []).append(clock() - begin)
    medians = {combination: statistics.median(found) for combination, found in samples.items()}
    return Costs(
        parameters,
        {name: {size: medians[group({name: size})] for size in sizes} for name in models},
        {combination: medians[combination] for combination in fused},
    )


def blank(model: SplitModel, count: int) -> Tensor:
    """A batch of black images, on the model's device."""
    images = torch.zeros((count, *model.entry.image_shape), device=model.device, dtype=model.dtype)
    return images.contiguous(memory_format=torch.channels_last)

