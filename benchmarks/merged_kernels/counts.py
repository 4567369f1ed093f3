"""Counts the loads of all layers of some models, compiles their kernels, and makes a report's rows of both."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import astuple, dataclass
from typing import Any

from benchmarks.common.gpu_targets import MULTIPROCESSORS
from benchmarks.merged_kernels.layers import Loads, layers_of, loads_of, processes, resources_of
from split_infer_ros.telemetry.machine import num_cores
from split_infer_ros.vision_ops.launch_limits import KernelResources, residency_rejection

FIRST, SECOND = "alexnet", "resnet18"  # the small models, by the mean of their parameters
WINDOW = 5  # requests, by the paper

Kernel = tuple[tuple[str, int, int], ...]  # for each layer: its model, its place, and the number of requests


@dataclass(frozen=True)
class Extent:
    """What a run counts and compiles.

    Attributes:
        models: the models.
        requests: numbers of requests of one model.
        compiled: those of them for which merged kernels are compiled.
        pairs: numbers of requests of the two models whose layers are fused.
        targets: the GPUs, 90 for sm_90.
    """

    models: Sequence[str]
    requests: Sequence[int]
    compiled: Sequence[int]
    pairs: Sequence[tuple[int, int]]
    targets: Sequence[int]


class Counts:
    """The counted loads of all layers, and the resources of all kernels.

    Args:
        extent: what is counted and compiled.

    Attributes:
        loads: the loads of a layer, by model, place and number of requests.
        resources: what a program takes, by kernel and target.
    """

    def __init__(self, extent: Extent) -> None:
        self._extent = extent
        self.loads: dict[tuple[str, int, int], Loads] = {}
        self.resources: dict[tuple[Kernel, int], KernelResources] = {}

    def collect(self) -> None:
        """Counts and compiles, each in processes of their own."""
        with (
            tempfile.TemporaryDirectory() as cache,
            processes(num_cores(), TRITON_INTERPRET="0", TRITON_CACHE_DIR=cache) as compilers,
            processes(max(1, num_cores() // 2), TRITON_INTERPRET="1") as interpreters,
        ):
            counted: dict[object, Future[dict[int, Loads]]] = {}  # by the kind of layer
            for model in self._extent.models:
                for place, layer in enumerate(layers_of(model)):
                    if layer.kind not in counted:
                        counted[layer.kind] = interpreters.submit(loads_of, model, place, self._extent.requests)
            compiled: dict[tuple[Kernel, int], Future[KernelResources]] = {
                (kernel, target): compilers.submit(resources_of, kernel, target)
                for target in self._extent.targets
                for kernel in self._kernels()
            }
            for model in self._extent.models:
                for place, layer in enumerate(layers_of(model)):
                    loads = counted[layer.kind].result()
                    self.loads |= {(model, place, number): loads[number] for number in self._extent.requests}
            self.resources = {which: future.result() for which, future in compiled.items()}

    def _kernels(self) -> Iterator[Kernel]:
        for model in self._extent.models:
            for place in range(len(layers_of(model))):
                yield from (((model, place, number),) for number in self._extent.compiled)
        for numbers in self._extent.pairs:
            yield from pairs_of(numbers)

    def sum_of(self, model: str, number: int) -> Loads:
        """Returns the loads of all layers of a model for this many requests."""
        found = [self.loads[model, place, number] for place in range(len(layers_of(model)))]
        return total(found)

    def layer_rows(self) -> Iterator[dict[str, Any]]:
        """Yields a row for each layer and number of requests."""
        for (model, place, number), loads in self.loads.items():
            layer = layers_of(model)[place]
            yield {
                "what": "layer",
                "model": model,
                "layer": layer.name,
                "requests": number,
                **of_loads(loads),
                **self._of_resources(((model, place, number),)),
            }

    def model_rows(self) -> Iterator[dict[str, Any]]:
        """Yields a row for each model and number of requests: the sums of all layers."""
        for model in self._extent.models:
            for number in self._extent.requests:
                yield {"what": "model", "model": model, "requests": number, **of_loads(self.sum_of(model, number))}

    def window_rows(self) -> Iterator[dict[str, Any]]:
        """Yields a row for each window of ``WINDOW`` requests: how many are of each model, and its ``probability``.

        The models are equally probable, as in the paper.
        """
        models = self._extent.models
        for numbers in itertools.product(range(WINDOW + 1), repeat=len(models)):
            if sum(numbers) == WINDOW:
                orders = math.factorial(WINDOW) // math.prod(map(math.factorial, numbers))
                loads = total([self.sum_of(*each) for each in zip(models, numbers, strict=True) if each[1]])
                yield {
                    "what": "window",
                    **dict(zip(models, numbers, strict=True)),
                    "probability": orders / len(models) ** WINDOW,
                    **of_loads(loads),
                }

    def pair_rows(self) -> Iterator[dict[str, Any]]:
        """Yields a row for each pair of n-th layers and numbers of requests."""
        for numbers in self._extent.pairs:
            for kernel in pairs_of(numbers):
                names = [f"{model} {layers_of(model)[place].name}" for model, place, _ in kernel]
                resident = {
                    f"resident_sm{target}": self._is_resident(kernel, target) for target in self._extent.targets
                }
                yield {
                    "what": "pair",
                    "layers": " + ".join(names),
                    "requests": list(numbers),
                    **self._of_resources(kernel),
                    **resident,
                }

    def fusable_pairs(self, numbers: tuple[int, int], target: int) -> int:
        """Returns how many pairs of layers can be fused on a GPU for these numbers of requests."""
        return sum(self._is_resident(kernel, target) for kernel in pairs_of(numbers))

    def _is_resident(self, kernel: Kernel, target: int) -> bool:
        return residency_rejection(self.resources[kernel, target], MULTIPROCESSORS[target]) is None

    def _of_resources(self, kernel: Kernel) -> dict[str, int]:
        found = {target: self.resources.get((kernel, target)) for target in self._extent.targets}
        return {
            f"{name}_sm{target}": getattr(taken, name)
            for target, taken in found.items()
            if taken is not None
            for name in ("registers", "shared_bytes", "warps")
        }


def pairs_of(numbers: tuple[int, int]) -> list[Kernel]:
    """Returns the fused kernels of the n-th layers of both small models, for these numbers of requests."""
    places = range(min(len(layers_of(FIRST)), len(layers_of(SECOND))))
    return [((FIRST, place, numbers[0]), (SECOND, place, numbers[1])) for place in places]


def total(found: Sequence[Loads]) -> Loads:
    """Returns the sums of loads."""
    return Loads(*(sum(values) for values in zip(*map(astuple, found), strict=True)))


def of_loads(loads: Loads) -> dict[str, float]:
    """Returns the part of a row that describes loads."""
    return {
        "separate_loads": loads.separate,
        "batch_loads": loads.batch,
        "merged_loads": loads.merged,
        "saved_percent": saved(loads),
    }


def saved(loads: Loads) -> float:
    """Returns how many percent of the loads of separate launches merging saves."""
    return 100.0 * (1 - loads.merged / loads.separate)
