"""Breadth-first order: operators of several requests take turns. Paper 001 compares itself with this earlier work.

The earlier work is Yu et al., Automated Runtime-Aware Scheduling for Multi-Tenant DNN Inference on GPU, ICCAD 2021.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from benchmarks.multi_tenant.load import Load
from benchmarks.multi_tenant.log import Execution, Log
from benchmarks.multi_tenant.trace import Arrivals
from split_infer_ros.runtime.num_threads import max_threads, use_threads
from split_infer_ros.runtime.streams import Fence, Stream
from split_infer_ros.server.schedule.request import Request
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partitions import extract, outputs_of
from split_infer_ros.split.traced_split_points import live_values

Operator = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class BreadthFirst:
    """Serves requests breadth first: runs one operator of each running request, then the next operator of each.

    On a GPU, kernels are launched one by one: a CUDA graph would fix their order.

    Attributes:
        operators: the operators of each model, in order, by the model's name.
        window: how many requests run at a time, in the order of arrival.
    """

    operators: Mapping[str, Sequence[Operator]]
    window: int

    @torch.inference_mode()
    def __call__(self, trace: Sequence[Request], load: Load) -> Log:
        """Serves a trace of requests; returns the log."""
        use_threads(max_threads())
        stream, log, waiting = Stream(load.device), Log(), deque[Request]()
        running: list[_Running] = []
        launched: deque[Future[None]] = deque()  # requests whose last operator is launched but perhaps not done
        arrivals = Arrivals(trace, log)

        def end(number: int, fence: Fence) -> None:
            fence.wait()
            log.end_s[number] = arrivals.now()

        with ThreadPoolExecutor(1) as ender:  # it waits, while this thread launches for other requests
            while True:
                waiting += arrivals.due()
                while launched and launched[0].done():
                    launched.popleft().result()
                while waiting and len(running) + len(launched) < self.window:
                    request = waiting.popleft()
                    log.start_s[request.number] = arrivals.now()
                    log.executions.append(Execution({request.model: 1}))
                    running.append(_Running(request, self.operators[request.model], (load.images[request.model],)))
                if not running:
                    if launched:
                        launched.popleft().result()
                    elif not arrivals.wait():
                        return log
                    continue
                with stream.work("turn"):
                    for each in running:
                        each.step()
                        if each.is_launched:
                            launched.append(ender.submit(end, each.request.number, stream.fence()))
                running = [each for each in running if not each.is_launched]


class _Running:
    """A running request. It holds the values that its next operator needs."""

    def __init__(self, request: Request, operators: Sequence[Operator], values: tuple[Tensor, ...]) -> None:
        self.request = request
        self._operators = operators
        self._values = values
        self._next = 0

    def step(self) -> None:
        """Runs the next operator."""
        self._values = self._operators[self._next](*self._values)
        self._next += 1

    @property
    def is_launched(self) -> bool:
        """True once every operator was called."""
        return self._next == len(self._operators)


def operators_of(model: SplitModel) -> tuple[Operator, ...]:
    """Returns a prepared model's operators as functions, in order.

    The first function takes a batch of images. Each takes what the function before it returned: the values that it and
    later operators need. The last function returns the model's outputs. A value is freed once no operator needs it.
    """
    graph: Any = model.backbone("output")
    nodes = list(graph.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    steps = [node for node in nodes if node.op not in ("placeholder", "get_attr", "output")]
    order: list[fx.Node] = [*inputs, *steps, nodes[-1]]
    found = []
    for node in steps:
        place = order.index(node)
        after = live_values(order, place + 1) if node is not steps[-1] else outputs_of(nodes)
        found.append(extract(graph, [node], inputs=live_values(order, place), outputs=after).forward)
    return tuple(found)
