"""Measured times in the place of the list: what each operator of a model takes on either processor."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.models.detections import Limits
from split_infer_ros.operator_placement.placed_graph import copy_to
from split_infer_ros.operator_placement.plan import Operator, Rule, Tag
from split_infer_ros.runtime.captures import synchronize_device

REPEATS = 5  # after one that warms up
CALLS = ("call_module", "call_function", "call_method")


@dataclass(frozen=True, slots=True)
class Times:
    """Samples of one operator, seconds.

    Attributes:
        cpu, gpu: it alone, with what it takes already there.
        moved: what it takes to the CPU, and what it gives back to the GPU.
    """

    cpu: tuple[float, ...]
    gpu: tuple[float, ...]
    moved: tuple[float, ...]


def by_times(times: Mapping[str, Times], otherwise: Rule) -> Rule:
    """A rule that leaves an operator on the GPU unless on the CPU it is faster by more than its copies take.

    Args:
        times: by an operator's name.
        otherwise: is asked about those that were not measured, and about which compute nothing.
    """

    def rule(operator: Operator) -> Tag | None:
        listed, found = otherwise(operator), times.get(operator.name)
        if found is None or listed is Tag.ANY:
            return listed
        cpu, gpu, moved = map(statistics.median, astuple(found))
        return Tag.CPU if cpu + moved < gpu else Tag.GPU

    return rule


def time_operators(
    graph: fx.GraphModule, images: Tensor, devices: Mapping[Tag, torch.device], repeats: int = REPEATS
) -> dict[str, Times]:
    """Run each operator on both processors.

    Args:
        graph: as ``with_decode`` gives it, on the CPU.
        images: (N, C, H, W).
        devices: what ``GPU`` and ``CPU`` are here.
        repeats: samples of each.
    """
    timer = _Timer(graph, devices, repeats)
    with torch.inference_mode():
        timer.run(images, Limits())
    return timer.times


class _Timer(fx.Interpreter):
    def __init__(self, graph: fx.GraphModule, devices: Mapping[Tag, torch.device], repeats: int) -> None:
        super().__init__(graph)
        self._devices = devices
        self._repeats = repeats
        self.times: dict[str, Times] = {}

    def run_node(self, node: fx.Node) -> Any:
        if node.op not in CALLS:
            return super().run_node(node)
        given = self.fetch_args_kwargs_from_env(node)
        cpu, gpu = self._devices[Tag.CPU], self._devices[Tag.GPU]
        on_cpu, result = self._time(node, given, cpu)
        on_gpu, far = self._time(node, given, gpu)
        there = copy_to(given, gpu)
        back = [self._seconds(lambda: (copy_to(there, cpu), copy_to(result, gpu)))[0] for _ in range(self._repeats)]
        del far
        self.times[node.name] = Times(tuple(on_cpu), tuple(on_gpu), tuple(back))
        return super().run_node(node)

    def _time(self, node: fx.Node, given: Any, device: torch.device) -> tuple[list[float], Any]:
        """Samples, and what came of the last; each time on copies, as an operator may change what it takes."""
        function = self._function(node, device)
        samples = []
        for _ in range(self._repeats + 1):
            args, kwargs = copy_to(pytree.tree_map_only(Tensor, Tensor.clone, given), device)
            seconds, result = self._seconds(lambda: function(*args, **kwargs))  # noqa: B023 - called at once
            samples.append(seconds)
        return samples[1:], result

    def _function(self, node: fx.Node, device: torch.device) -> Callable[..., Any]:
        if node.op == "call_module":
            module: nn.Module = copy.deepcopy(self.fetch_attr(str(node.target))).to(device)
            return module
        if node.op == "call_method":
            return lambda value, *args, **kwargs: getattr(value, str(node.target))(*args, **kwargs)
        assert callable(node.target)
        return node.target

    def _seconds(self, call: Callable[[], Any]) -> tuple[float, Any]:
        gpu = self._devices[Tag.GPU]
        synchronize_device(gpu)
        start = time.perf_counter()
        result = call()
        synchronize_device(gpu)
        return time.perf_counter() - start, result


def to_records(times: Mapping[str, Times], key: Key, task: Mapping[str, Any]) -> list[Record]:
    """One record for each operator and processor."""
    now = time.time()
    return [
        Record(key.target, key.versions_for(task), task, {"operator": name, "part": part.name}, samples, time=now)
        for name, found in times.items()
        for part, samples in zip(fields(found), astuple(found), strict=True)
    ]


def from_records(records: Iterable[Record]) -> dict[str, Times]:
    """Of records of one task the operators of which all is known; of those measured twice the later ones."""
    parts: dict[str, dict[str, tuple[float, ...]]] = {}
    for record in records:
        name, part = record.config.get("operator"), record.config.get("part")
        if record.error is None and record.costs and isinstance(name, str) and isinstance(part, str):
            parts.setdefault(name, {})[part] = record.costs
    names = {field.name for field in fields(Times)}
    return {name: Times(**found) for name, found in parts.items() if found.keys() == names}
