"""Made-up costs of three small networks, for tests of the benchmark of tenants."""

from __future__ import annotations

from benchmarks.multi_tenant import rivals
from split_infer_ros.server.schedule.execution_costs import ExecutionCosts, combination_of
from split_infer_ros.server.schedule.execution_modes import ExecutionModes

MODELS = ("squeezenet1_0", "mobilenet_v2", "resnet18")  # the first two have fewer parameters than the mean
FUSED = combination_of(dict.fromkeys(MODELS[:2], 1))
PARAMETERS = dict(zip(MODELS, (1, 2, 12), strict=True))
ALONE_S = dict(zip(MODELS, ({1: 0.01}, {1: 0.02, 8: 0.08}, {1: 0.03}), strict=True))
COSTS = ExecutionCosts(PARAMETERS, ALONE_S, {FUSED: 0.02})
LANE_S = {name: {size: 1.5 * seconds for size, seconds in sizes.items()} for name, sizes in ALONE_S.items()}
MODES = ExecutionModes(COSTS, 2, ExecutionCosts(PARAMETERS, LANE_S))
NAMES = (
    rivals.SEQUENTIAL,
    f"{rivals.CONCURRENT}, 2 workers",
    rivals.BREADTH_FIRST,
    rivals.MERGE,
    rivals.FUSE,
    rivals.with_lanes(rivals.MERGE),
    rivals.with_lanes(rivals.FUSE),
)
