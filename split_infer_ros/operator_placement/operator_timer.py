"""Times each operator of a model on both processors."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from split_infer_ros.models.detections import Limits
from split_infer_ros.operator_placement.operator_times import OperatorTimes
from split_infer_ros.operator_placement.placed_graph import copy_to
from split_infer_ros.operator_placement.plan import Tag
from split_infer_ros.runtime.captures import synchronize_device
from split_infer_ros.runtime.device import Device

REPEATS = 5  # samples of each operator, after one call that warms up
CALLS = ("call_module", "call_function", "call_method")  # kinds of nodes that compute


def time_operators(
    graph: fx.GraphModule, images: Tensor, devices: Mapping[Tag, Device], repeats: int = REPEATS
) -> dict[str, OperatorTimes]:
    """Runs each operator on both processors. Returns the operators' times by name.

    Args:
        graph: the result of ``with_decode``, on the CPU.
        images: the images to run on, (N, C, H, W).
        devices: the device of each of ``Tag.GPU`` and ``Tag.CPU``.
        repeats: the number of samples of each operator.
    """
    timer = _OperatorTimer(graph, devices, repeats)
    with torch.inference_mode():
        timer.run(images, Limits())
    return timer.times


class _OperatorTimer(fx.Interpreter):
    """Runs a graph and times each of its operators on both processors."""

    def __init__(self, graph: fx.GraphModule, devices: Mapping[Tag, Device], repeats: int) -> None:
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

    def _time(self, node: fx.Node, inputs: Any, device: Device) -> tuple[list[float], Any]:
        """Returns the times of all calls but the first, in seconds, and the result of the last call.

        Each call gets copies of the inputs, because an operator may change them.
        """
        function = self._function(node, device)
        samples = []
        for _ in range(self._repeats + 1):
            args, kwargs = copy_to(pytree.tree_map_only(Tensor, Tensor.clone, inputs), device)
            seconds, result = self._seconds(lambda: function(*args, **kwargs))  # noqa: B023 - called at once
            samples.append(seconds)
        return samples[1:], result

    def _function(self, node: fx.Node, device: Device) -> Callable[..., Any]:
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
