"""What test/gpu does with co-run tasks and models, on the simulated GPU as far as that goes."""

from __future__ import annotations

from random import Random

import pytest
import torch
from brightness_models import BrightModel, Brightness, frame
from hypothesis import given
from hypothesis import strategies as st
from simulated_gpu import GPU, Gpu, simulated
from simulated_settings import drawn
from two_models_on_gpu import Neighbour, run_together

from benchmarks.co_optimisation import __main__ as co_optimisation
from benchmarks.co_optimisation.real_gpu import RealGpu
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.memory_cost.co_run_schedule import ReleasedTask
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_network import TorchNetwork

pytestmark = pytest.mark.usefixtures("plain_operators")

D, M = Policy.DEVICE, Policy.MANAGED
ONE_SIDE_AT_A_TIME = ["cudaDevAttrConcurrentManagedAccess"]
SIZE = 1 << 20
seeds = given(seed=st.integers(0, 10**6))


@pytest.mark.parametrize("absent", [[], ONE_SIDE_AT_A_TIME], ids=["concurrent access", "one side at a time"])
@drawn(2)
@seeds
def test_pair_of_applications_gives_what_each_kernel_wrote(absent: list[str], seed: int) -> None:
    """Exact: sums of ones."""
    applications = {each.name: each for each in co_optimisation.APPLICATIONS if each.kernels < 100}
    with simulated(Gpu(Random(seed).randrange, absent=absent)):
        gpu = RealGpu(GPU, applications, SIZE)
        tasks = [applications[name].task(SIZE) for name in ("add", "search")]
        for device, managed in (tasks, tasks[::-1]):
            ends = gpu([ReleasedTask(device, D), ReleasedTask(managed, M)])
            assert 0 < ends[0] <= ends[1]
        for policy in (D, M):
            values = gpu.memory_of("search", policy).host.view(torch.float32)
            assert values.sum().item() == len(values) + 23 * round(len(values) / 24), "the first one adds to all"
            assert gpu.memory_of("add", policy).host.view(torch.float32).eq(1).all()


@pytest.mark.parametrize("policies", [(D, D), (D, M), (M, M)])
@drawn(2)
@seeds
def test_models_side_by_side_give_their_own_features(policies: tuple[Policy, Policy], seed: int) -> None:
    """Exact: each value is a pixel's, times one."""
    with simulated(Gpu(Random(seed).randrange)):
        models = [
            SplitModel(TorchNetwork(BrightModel(name).entry, Brightness(1))).placed(GPU) for name in ("one", "two")
        ]
        neighbours = [Neighbour(model, policy, 2) for model, policy in zip(models, policies, strict=True)]
        assert [neighbour.plan.pool.slots.policy for neighbour in neighbours] == list(policies)
        for value in (51, 102):
            images = [frame(value, "a")[0], frame(value + 51, "a")[0]]
            features, seconds = run_together(neighbours, images)
            assert seconds > 0
            for (found,) in features:
                assert found.amax((1, 2, 3)).mul(255).round().tolist() == [value, value + 51]
        for neighbour in neighbours:
            neighbour.close()
