"""Measured times of each operator of a model on both processors, which replace the list of operators."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
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

REPEATS = 5  # after one call that warms up
CALLS = ("call_module", "call_function", "call_method")  # kinds of nodes that compute


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """Samples of one operator, in seconds.

    Attributes:
        cpu, gpu: the operator alone, with its inputs already on that processor.
        moved: the copies of its inputs to the CPU and of its results back to the GPU.
    """

    cpu: tuple[float, ...]
    gpu: tuple[float, ...]
    moved: tuple[float, ...]


def rule_from_times(times: Mapping[str, OperatorTimes], fallback: Rule) -> Rule:
    """Returns a rule that moves an operator to the CPU if that saves more time than the copies take.

    Args:
        times: by an operator's name.
        fallback: the rule for operators that were not measured. It also says which operators compute nothing.
    """

    def rule(operator: Operator) -> Tag | None:
        fallback_tag, samples = fallback(operator), times.get(operator.name)
        if samples is None or fallback_tag is Tag.ANY:
            return fallback_tag
        cpu_s, gpu_s, moved_s = (statistics.median(part) for part in (samples.cpu, samples.gpu, samples.moved))
        return Tag.CPU if cpu_s + moved_s < gpu_s else Tag.GPU

    return rule


def time_operators(
    graph: fx.GraphModule, images: Tensor, devices: Mapping[Tag, torch.device], repeats: int = REPEATS
) -> dict[str, OperatorTimes]:
    """Runs each operator on both processors and returns its times by its name.

    Args:
        graph: the result of ``with_decode``, on the CPU.
        images: (N, C, H, W).
        devices: the devices that ``GPU`` and ``CPU`` stand for.
        repeats: samples of each operator.
    """
    timer = _OperatorTimer(graph, devices, repeats)
    with torch.inference_mode():
        timer.run(images, Limits())
    return timer.times


class _OperatorTimer(fx.Interpreter):
    """Runs a graph and times each of its operators on both processors."""

    def __init__(self, graph: fx.GraphModule, devices: Mapping[Tag, torch.device], repeats: int) -> None:
        super().__init__(graph)
        self._devices = devices
        self._repeats = repeats
        self.times: dict[str, OperatorTimes] = {}

    def run_node(self, node: fx.Node) -> Any:
        if node.op not in CALLS:
            return super().run_node(node)
        inputs = self.fetch_args_kwargs_from_env(node)
        cpu, gpu = self._devices[Tag.CPU], self._devices[Tag.GPU]
        cpu_s, result = self._time(node, inputs, cpu)
        gpu_s, _ = self._time(node, inputs, gpu)
        gpu_inputs = copy_to(inputs, gpu)
        moved_s = [
            self._seconds(lambda: (copy_to(gpu_inputs, cpu), copy_to(result, gpu)))[0] for _ in range(self._repeats)
        ]
        self.times[node.name] = OperatorTimes(cpu=tuple(cpu_s), gpu=tuple(gpu_s), moved=tuple(moved_s))
        return super().run_node(node)

    def _time(self, node: fx.Node, inputs: Any, device: torch.device) -> tuple[list[float], Any]:
        """Returns the samples and the result of the last call.

        Each call gets copies, because an operator may change its inputs.
        """
        function = self._function(node, device)
        samples = []
        for _ in range(self._repeats + 1):
            args, kwargs = copy_to(pytree.tree_map_only(Tensor, Tensor.clone, inputs), device)
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


def to_records(times: Mapping[str, OperatorTimes], key: Key, task: Mapping[str, Any]) -> list[Record]:
    """Returns one record for each operator and each field of its times."""
    now = time.time()
    return [
        key.record(task, {"operator": name, "part": field.name}, getattr(operator_times, field.name), time=now)
        for name, operator_times in times.items()
        for field in fields(operator_times)
    ]


def from_records(records: Iterable[Record]) -> dict[str, OperatorTimes]:
    """Returns the times of the operators whose times are complete.

    Args:
        records: of one task, oldest first. Later measurements replace earlier ones.
    """
    parts: dict[str, dict[str, tuple[float, ...]]] = {}
    for record in records:
        name, part = record.config.get("operator"), record.config.get("part")
        if record.error is None and record.costs and isinstance(name, str) and isinstance(part, str):
            parts.setdefault(name, {})[part] = record.costs
    all_parts = {field.name for field in fields(OperatorTimes)}
    return {name: OperatorTimes(**found) for name, found in parts.items() if found.keys() == all_parts}
