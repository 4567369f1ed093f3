"""Real pipelines on the simulated GPU: each result belongs to its frame, and nothing races, in any order of work."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from random import Random
from threading import Thread

import pytest
from brightness_pipeline import SETTINGS, BrightRun, bright_model
from hypothesis import given
from hypothesis import strategies as st
from simulated_gpu import Gpu, simulated
from simulated_settings import drawn, gpu_of

from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.runtime.captures import empty_cache
from split_infer_ros.runtime.streams import Fence
from split_infer_ros.split.model import SplitModel

pytestmark = pytest.mark.usefixtures("plain_operators")

ONE_SIDE_AT_A_TIME = ["cudaDevAttrConcurrentManagedAccess"]
LARGE = 1300, 800  # more bytes than a buffer for raw pixels begins with
GPU_S = 0.02  # for a batch, and so longer than its launch
seeds = given(seed=st.integers(0, 10**6))


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
@drawn(2)
@seeds
def test_each_result_belongs_to_its_frame(policy: Policy, graphs: bool, seed: int) -> None:
    settings = replace(SETTINGS, memory_policy=policy.value, cuda_graphs=graphs)
    with simulated(gpu_of(seed, policy, graphs)), BrightRun(settings) as run:
        run.feed(12)
        run.check()


@drawn(3)
@seeds
def test_managed_memory_is_never_used_by_both_sides(seed: int) -> None:
    settings = replace(SETTINGS, memory_policy="managed")
    with simulated(Gpu(Random(seed).randrange, absent=ONE_SIDE_AT_A_TIME)), BrightRun(settings) as run:
        run.feed(12)
        run.check()


@pytest.mark.parametrize("policy", POLICIES)
@drawn(2)
@seeds
def test_a_pipeline_starts_again_after_larger_frames(policy: Policy, seed: int) -> None:
    with simulated(gpu_of(seed, policy)), BrightRun(replace(SETTINGS, memory_policy=policy.value)) as run:
        for _ in range(2):
            run.feed(2)
            run.feed(4, *LARGE)
            run.check()
            run.pipeline.backbone.stop(60.0)
            run.pipeline.backbone.start()
        run.feed(4)
        run.check()


def test_a_pipeline_is_reconfigured_forty_times_under_load(gpu: Gpu) -> None:
    with BrightRun() as run:
        for number in range(40):
            run.feed(3)
            changed = replace(
                SETTINGS,
                batch_size=1 + number % 3,
                pool_slots=1 + number % 4,
                memory_policy=POLICIES[number % 3].value,
            )
            run.pipeline.backbone.configure(changed)
        run.feed(3)
        run.check()
    assert gpu.calls.count("cudaStreamCreateWithFlags") < 20, "streams are given back"


@pytest.mark.parametrize("graphs", [True, False])
def test_nothing_is_given_to_the_stream_that_all_share(graphs: bool, gpu: Gpu) -> None:
    """Every thread's work waits for the default stream. Weights that are loaded there would hold frames up."""
    with BrightRun(replace(SETTINGS, cuda_graphs=graphs)) as run:
        run.feed(3)
        run.pipeline.backbone.configure(replace(SETTINGS, cuda_graphs=graphs, batch_size=3, memory_policy="pinned"))
        run.feed(3)
        run.check()
    assert gpu.default.given == 0


def test_two_pipelines_are_configured_at_once(gpu: Gpu) -> None:
    errors: list[Exception] = []

    def go(model: SplitModel) -> None:
        try:
            with BrightRun(SETTINGS, model) as run:
                for size in (1, 2, 3):
                    run.pipeline.backbone.configure(replace(SETTINGS, batch_size=size))
                    run.feed(4)
                run.check()
        except Exception as error:
            errors.append(error)

    threads = [Thread(target=go, args=[bright_model()]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_backbone_that_cannot_be_recorded_still_runs(gpu: Gpu) -> None:
    gpu.fail_captures = 1
    with BrightRun() as run:
        (note,) = run.pipeline.notices
        assert "without CUDA graphs" in note
        run.feed(6)
        run.check()


def test_the_backbone_is_busy_until_the_gpu_is_done(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backbone counts as busy until the work is done, and not only while batches are launched."""
    wait = Fence.wait

    def take_longer(fence: Fence) -> None:
        if threading.current_thread().name == "handover":
            time.sleep(GPU_S)
        wait(fence)

    monkeypatch.setattr(Fence, "wait", take_longer)
    begin = time.monotonic()
    with BrightRun() as run:
        run.feed(12)
        run.check()
        report = run.pipeline.backbone.report(time.monotonic())
    assert report.batches > 1
    assert GPU_S * report.batches <= report.backbone_busy_s <= report.time - begin


def test_memory_is_given_back(gpu: Gpu) -> None:
    with BrightRun() as run:
        run.feed(4)
        run.check()
    del run
    empty_cache()
    assert gpu.allocator.allocated < 10_000
    assert [region.name for region in gpu.memory.regions() if region.is_shared] == []
