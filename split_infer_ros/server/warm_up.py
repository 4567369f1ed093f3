"""Runs blank batches before frames come, because the first batches compile, choose kernels and pack weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import Compiler
from split_infer_ros.errors import PassingError
from split_infer_ros.runtime.num_threads import max_threads, use_one_thread
from split_infer_ros.runtime.priority import BACKBONE, give_way
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.server.plan import Plan
from split_infer_ros.split.model import SplitModel

# A batch takes nearly twice as long on one core as on two. So a lower limit is not worth a trial, which takes memory.
MIN_LIMIT_ON_ONE_CORE = 1.4
NUM_LANES = 2  # lanes of a server that measures no costs; with more, each batch would take longer for little gain


class WarmUp:
    """Runs blank batches of plans on new threads, with the number of threads that the plans' operations use later.

    With another number of threads, an engine would prepare the model again while frames flow.

    If costs of executions are measured on a CPU, single images are enough. An engine may compile each batch size, which
    takes memory. Batches of several images come only if measuring, which runs them, shows that they save time.

    Args:
        num_lanes: the server's number of lanes; 0: none.
        measures: whether the server measures costs of executions.
    """

    def __init__(self, num_lanes: int, *, measures: bool = False) -> None:
        self._num_lanes, self._measures = num_lanes, measures

    def can_use_lanes(self, plan: Plan) -> bool:
        """Returns whether two batches of the plan may be computed side by side."""
        num_lanes = count_lanes(plan.model, self._num_lanes)
        is_one_core = max_threads() // num_lanes <= 1
        return num_lanes > 1 and (not is_one_core or plan.settings.lane_limit > MIN_LIMIT_ON_ONE_CORE)

    def prepares_lanes(self, plan: Plan) -> bool:
        """Returns whether lanes need preparation. For torch, ``run`` has prepared everything already."""
        return plan.model.execution_config.engine is not Engine.TORCH

    def run(self, plan: Plan) -> None:
        """Runs a plan's blank batches on all cores, or on the GPU. Raises what the model raises."""
        model = plan.model
        on_all = partial(_set_up, model.execution_config.engine, model.execution_config.threads)
        set_up: Callable[[], None] = on_all if model.device.type == "cpu" else use_one_thread
        self._run(1, set_up, lambda: plan.warm_up(self._sizes(plan), Stream(model.device), Stream(model.device)))

    def run_on_lanes(self, plan: Plan) -> None:
        """Runs a plan's blank batches on all lanes at once. The plan may compute batches meanwhile.

        Raises what the model raises.
        """
        if self.prepares_lanes(plan):
            lane_threads = max(1, max_threads() // self._num_lanes)
            set_up = partial(_set_up, plan.model.execution_config.engine, lane_threads, self._num_lanes)
            self._run(self._num_lanes, set_up, lambda: plan.warm_up_beside(self._sizes(plan)))

    def _sizes(self, plan: Plan) -> Sequence[int]:
        model = plan.model
        is_single = self._measures and model.device.type == "cpu" and model.network.has_one_graph
        return plan.warm_up_sizes[:1] if is_single else plan.warm_up_sizes

    def _run(self, num_threads: int, set_up: Callable[[], None], work: Callable[[], None]) -> None:
        with ThreadPoolExecutor(num_threads, initializer=set_up) as executor:
            for each in [executor.submit(work) for _ in range(num_threads)]:
                with suppress(PassingError):  # a task that starts again needs no warm-up
                    each.result()


def _set_up(engine: Engine, num_threads: int, num_lanes: int = 1) -> None:
    """Prepares a thread like the threads that compute. An engine's own threads inherit its nice value."""
    engine.use_threads(num_threads, num_lanes)
    give_way(BACKBONE)


def count_lanes(model: SplitModel, num_lanes: int = NUM_LANES) -> int:
    """Returns on how many lanes a model's backbone can run; 1 if each batch needs all cores, or the GPU.

    torch makes a team of threads for each thread that computes with several threads. If the teams have more threads
    than there are cores, they slow each other. So torch uses lanes only if each lane is one core. Code made by
    torch.compile is not run by two threads at once.

    Args:
        model: the model, on its device.
        num_lanes: the server's number of lanes.
    """
    config = model.execution_config
    lane_threads = max_threads() // max(1, num_lanes)
    is_possible = lane_threads == 1 if config.engine is Engine.TORCH else lane_threads >= 1
    is_possible &= model.device.type == "cpu" and config.compiler is Compiler.NONE
    return num_lanes if is_possible and num_lanes > 1 else 1
