"""A pipeline on a GPU: restarts, larger frames, many changes of its settings, and work that cannot be recorded."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from gpu_frames import SETTINGS, check_scores, picture, running
from real_gpu import GPU, SANITIZED, free_bytes, need

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.load import build_model, load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.torch_network import TorchNetwork

LONG_S = 60.0
CHANGES = 6 if SANITIZED else 40  # more than the 32 streams that torch deals out in turn
MB = 1 << 20
SMALL, LARGE = (240, 320), (1080, 1920)


@pytest.mark.parametrize("graphs", [True, False])
def test_it_restarts_after_larger_frames(graphs: bool) -> None:
    sizes = {number: LARGE if number in range(4, 8) else SMALL for number in range(12)}
    with running(replace(SETTINGS, cuda_graphs=graphs)) as (pipeline, scores):
        for first in (0, 4, 8):
            pipeline.feed(picture(number, sizes[number]) for number in range(first, first + 4))
            pipeline.finish()
            pipeline.backbone.stop(LONG_S)
            pipeline.backbone.start()
    assert sorted(scores) == list(sizes)
    check_scores(scores, sizes)


def change_under_load(pipeline: LocalPipeline, first: StageSettings, count: int) -> int:
    """Change the settings so often, each time while frames are under way; returns how many frames were fed."""
    stop = threading.Event()
    fed = 0

    def feed() -> None:
        nonlocal fed
        while not stop.is_set():
            pipeline.feed([picture(fed % 8)])
            fed += 1

    with ThreadPoolExecutor(1) as executor:
        feeding = executor.submit(feed)
        try:
            for number in range(count):
                before = fed
                while fed == before and not feeding.done():
                    time.sleep(1e-3)
                pipeline.backbone.configure(replace(first, batch_size=1 + number % 4, pool_slots=1 + number % 3))
        finally:
            stop.set()
        feeding.result()
    pipeline.finish()
    return fed


def test_many_changes_under_load_leave_all_frames_right() -> None:
    with running(SETTINGS) as (pipeline, scores):
        fed = change_under_load(pipeline, SETTINGS, CHANGES)
    assert fed >= CHANGES
    assert sorted(scores) == list(range(fed))
    assert pipeline.backbone.ledger.counts().published == fed
    for number, found in scores.items():
        check_scores({number % 8: found})


def test_two_pipelines_are_configured_at_once() -> None:
    """Each records graphs while the other synchronises, records and allocates."""

    def run(precision: Precision) -> None:
        model = load_model(ModelSpec("shapes", device=str(GPU), execution_config=ExecutionConfig(precision=precision)))
        with running(SETTINGS, model=model) as (pipeline, scores):
            together.wait(LONG_S)
            fed = change_under_load(pipeline, SETTINGS, 12)
        assert sorted(scores) == list(range(fed))
        for number, found in scores.items():
            check_scores(
                {number % 8: found}, tolerance=2e-3 if precision is Precision.FP32 else 2e-2
            )  # 10 bits of mantissa

    together = threading.Barrier(2)
    with ThreadPoolExecutor(2) as executor:
        for done in [executor.submit(run, precision) for precision in (Precision.FP32, Precision.FP16)]:
            done.result()


class Unrecordable(torch.nn.Module):
    """Runs like the backbone inside, and waits for a value of the GPU's, which no recording bears."""

    def __init__(self, inner: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: torch.Tensor) -> object:
        assert images.flatten()[0].item() < 1e6
        return self.inner(images)


def run_unrecordable(monkeypatch: pytest.MonkeyPatch) -> str:
    """Have a pipeline serve with a backbone whose recording fails; returns what it notes."""
    entry, module = build_model(ModelSpec("shapes", "default"))
    model = SplitModel(TorchNetwork(entry, module), GPU)  # not the one that all tests share
    backbone = model.backbone
    monkeypatch.setattr(model, "backbone", lambda split_point: Unrecordable(backbone(split_point)))
    with running(SETTINGS, model=model) as (pipeline, scores):
        (note,) = pipeline.notices
        pipeline.feed(map(picture, range(8)))
        pipeline.finish()
    assert sorted(scores) == list(range(8))
    check_scores(scores)
    return note


def test_a_backbone_that_cannot_be_recorded_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "runs without CUDA graphs" in run_unrecordable(monkeypatch)
    # The failure leaves no trace: memory is page-locked, numbers are drawn, and what can be recorded is.
    assert torch.empty(MB, dtype=torch.uint8, pin_memory=True).is_pinned(), "torch asks the graph that failed"
    assert 0 <= torch.rand(1, device=GPU).item() < 1  # before a good recording would have torch draw again
    graph, values = torch.cuda.CUDAGraph(), torch.zeros(4, device=GPU)
    # torch makes one seed for all graphs that live at a time, in the mode of the first: the package's are in this one
    with torch.inference_mode(), torch.cuda.graph(graph):
        values += 1
    graph.replay()
    assert values.tolist() == [1, 1, 1, 1]


def test_memory_is_given_back_after_a_recording_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    run_unrecordable(monkeypatch)
    before = free_bytes()
    taken = torch.empty(256 * MB, dtype=torch.uint8, device=GPU)
    assert free_bytes() <= before - 200 * MB
    del taken
    assert free_bytes() >= before - 20 * MB


@pytest.mark.parametrize("policy", [Policy.DEVICE, Policy.MANAGED, Policy.PINNED])
def test_memory_is_given_back(policy: Policy) -> None:
    need(policy)

    def run() -> int:
        with running(replace(SETTINGS, memory_policy=policy.value, batch_size=16)) as (pipeline, _):
            pipeline.feed([picture(2, LARGE)] * 16)
            pipeline.finish()
            held = free_bytes()
        del pipeline
        gc.collect()
        return held

    run()  # from now on kernels are loaded, and the model is there
    begin = free_bytes()
    for _ in range(3):
        assert run() < begin - MB, "what runs takes memory, or nothing could be given back"
    # cuBLAS may have taken a workspace of 32 MB for another stream; what runs takes hundreds.
    assert free_bytes() >= begin - 48 * MB
