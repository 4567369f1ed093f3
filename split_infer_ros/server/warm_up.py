"""Runs blank batches before frames come, because the first batches compile, choose kernels and pack weights."""

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

NUM_LANES = 2  # lanes of a server that measures no costs; with more, each batch would take longer for little gain


class WarmUp:
    """Runs blank batches of a model on new threads, with the number of threads that its operations use later.

    With another number of threads, an engine would prepare the model again while frames flow.

    Args:
        model: the model; its plans are warmed up.
        num_threads: threads for the backbone's operations on a CPU; 0: all.
        num_lanes: the server's number of lanes; 0: none.
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
        """Whether ``run_on_lanes`` has anything to prepare. For torch, ``run`` has prepared everything already."""
        return self._engine is not Engine.TORCH

    def run(self, plan: Plan) -> None:
        """Runs a plan's blank batches on all cores, or on the GPU. Raises what the model raises."""
        self._run(1, self._on_all_cores, lambda: plan.warm_up(Stream(self._device), Stream(self._device)))

    def run_on_lanes(self, plan: Plan) -> None:
        """Runs a plan's blank batches on all lanes at once. The plan may compute batches meanwhile.

        Raises what the model raises.
        """
        if self.prepares_lanes:
            self._run(self._num_lanes, self._on_lane, plan.warm_up_beside)

    def _run(self, num_threads: int, set_up: Callable[[], None], work: Callable[[], None]) -> None:
        with ThreadPoolExecutor(num_threads, initializer=set_up) as executor:
            for each in [executor.submit(work) for _ in range(num_threads)]:
                each.result()


def _set_up(engine: Engine, num_threads: int, num_lanes: int = 1) -> None:
    """Prepares a thread like the threads that compute. An engine's own threads inherit its nice value."""
    engine.use_threads(num_threads, num_lanes)
    give_way(BACKBONE)


def count_lanes(model: SplitModel, num_threads: int, num_lanes: int = NUM_LANES) -> int:
    """Returns on how many lanes a model's backbone can run; 1 if each batch needs all cores, or the GPU.

    torch makes a team of threads for each thread that computes with several threads. If the teams have more threads
    than there are cores, they slow each other. So torch uses lanes only if each lane is one core. Code made by
    torch.compile is not run by two threads at once.

    Args:
        model: the model, on its device.
        num_threads: threads for the backbone's operations; 0: all. A backbone with fewer threads than cores gets no
            lanes, because other programs count on the remaining cores.
        num_lanes: the server's number of lanes.
    """
    config = model.execution_config
    has_all_cores = model.device.type == "cpu" and num_threads in (0, max_threads())
    lane_threads = max_threads() // max(1, num_lanes)
    is_possible = lane_threads == 1 if config.engine is Engine.TORCH else lane_threads >= 1
    return num_lanes if has_all_cores and is_possible and config.compiler is Compiler.NONE and num_lanes > 1 else 1
