"""Blank batches before frames come: the first ones compile, choose kernels and pack weights. And a trial of lanes."""

from __future__ import annotations

import math
import time
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

LANES_LIMIT = 1.1  # times the time on all cores: lanes usually need less, but a machine that starts up is busy
TRIALS = 3  # of lanes and of all cores
TRIALS_S = 1.0  # for those of all cores; where a batch takes longer than a third of this, there are fewer
NUM_LANES = 2  # of a server that measures no costs: with more, each batch would take longer for little gain
MAX_TRIAL_S = 1.5  # if a warm-up takes longer, lanes are not tried: that would delay the start too much


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

    def run(self, plan: Plan) -> None:
        """Warms a plan up as it will be used. Raises what the model raises."""
        self._seconds(plan, 1, self._on_all_cores)
        if self._num_lanes > 1 and plan.may_use_lanes and self._engine is not Engine.TORCH:
            self._seconds(plan, self._num_lanes, self._on_lane)

    def lanes_serve_more(self, plan: Plan) -> bool:
        """Tries lanes, all of them at work, against all cores, in turns. The fastest of each counts.

        Usually one turn shows that lanes serve more. No more than that delays the start then.
        """
        if not (self._num_lanes > 1 and plan.may_use_lanes):
            return False
        whole_s = self._seconds(plan, 1, self._on_all_cores)
        if whole_s > MAX_TRIAL_S:
            return False
        if self._engine is Engine.TORCH:  # whose lanes ``run`` leaves cold
            self._seconds(plan, self._num_lanes, self._on_lane)
        lanes_s = math.inf
        for _ in range(max(1, min(TRIALS, int(TRIALS_S / whole_s)))):
            lanes_s = min(lanes_s, self._seconds(plan, self._num_lanes, self._on_lane))
            if lanes_s < self._num_lanes * whole_s:
                return True
            whole_s = min(whole_s, self._seconds(plan, 1, self._on_all_cores))
        return lanes_s < LANES_LIMIT * self._num_lanes * whole_s

    def _seconds(self, plan: Plan, num_threads: int, set_up: Callable[[], None]) -> float:
        """Warms the plan up on so many new threads at the same time; returns the seconds that it took."""
        with ThreadPoolExecutor(num_threads, initializer=set_up) as executor:
            begin = time.monotonic()
            runs = [
                executor.submit(plan.warm_up, Stream(self._device), Stream(self._device)) for _ in range(num_threads)
            ]
            for each in runs:
                each.result()
            return time.monotonic() - begin


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
