"""Blank batches before frames come: the first ones compile, choose kernels and pack weights."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import Compiler
from split_infer_ros.runtime.num_threads import max_threads, use_one_thread
from split_infer_ros.runtime.priority import BACKBONE, give_way
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.server.plan import Plan
from split_infer_ros.split.model import SplitModel

NUM_LANES = 2  # of a server that measures no costs: with more, each batch would take longer for little gain


class WarmUp:
    """Runs blank batches of a model on new threads, with as many threads for its operations as later.

    What is made for a number of threads would else be made anew while frames flow.

    Args:
        model: whose plans are warmed up.
        num_threads: of the backbone's operations on a CPU; 0: all.
        num_lanes: of the server; 0: none.
    """

    def __init__(self, model: SplitModel, num_threads: int, num_lanes: int) -> None:
        config, self._device = model.execution_config, model.device
        self._num_lanes = count_lanes(model, num_threads, num_lanes)
        on_all = partial(_set_up, config.engine, num_threads)
        self._on_all_cores: Callable[[], None] = on_all if model.device.type == "cpu" else use_one_thread
        lane_threads = max(1, max_threads() // max(1, num_lanes))
        self._on_lane = partial(_set_up, config.engine, lane_threads, max(1, num_lanes))
        self._engine = config.engine

    @property
    def can_use_lanes(self) -> bool:
        """Whether two batches of the model may be computed side by side."""
        return self._num_lanes > 1

    @property
    def prepares_lanes(self) -> bool:
        """Whether ``run_on_lanes`` makes anything. What torch needs on a lane, it has from all cores."""
        return self._engine is not Engine.TORCH

    def run(self, plan: Plan) -> None:
        """Warms a plan up on all cores, or on the GPU. Raises what the model raises."""
        self._run(1, self._on_all_cores, lambda: plan.warm_up(Stream(self._device), Stream(self._device)))

    def run_on_lanes(self, plan: Plan) -> None:
        """Warms a plan up on all lanes, also while its batches are computed. Raises what the model raises."""
        if self.prepares_lanes:
            self._run(self._num_lanes, self._on_lane, plan.warm_up_beside)

    def _run(self, num_threads: int, set_up: Callable[[], None], work: Callable[[], None]) -> None:
        with ThreadPoolExecutor(num_threads, initializer=set_up) as executor:
            for each in [executor.submit(work) for _ in range(num_threads)]:
                each.result()


def _set_up(engine: Engine, num_threads: int, num_lanes: int = 1) -> None:
    """Prepares a thread as those that compute. An engine's own threads inherit its nice value."""
    engine.use_threads(num_threads, num_lanes)
    give_way(BACKBONE)


def count_lanes(model: SplitModel, num_threads: int, num_lanes: int = NUM_LANES) -> int:
    """Returns on how many lanes a model's backbone can run; 1 if a batch must have all cores, or the GPU.

    torch has a team of threads for each thread that computes with several. More of them than cores hinder each other,
    so torch has lanes only where each is one core. What torch.compile made is not run by two threads at once.

    Args:
        model: on its device.
        num_threads: of the backbone's operations; 0: all. Where it has not all of them, others count on the rest.
        num_lanes: of the server.
    """
    config = model.execution_config
    has_all_cores = model.device.type == "cpu" and num_threads in (0, max_threads())
    lane_threads = max_threads() // max(1, num_lanes)
    is_possible = lane_threads == 1 if config.engine is Engine.TORCH else lane_threads >= 1
    return num_lanes if has_all_cores and is_possible and config.compiler is Compiler.NONE and num_lanes > 1 else 1
