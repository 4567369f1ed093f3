"""Backbones that cannot become a graph, on the simulated GPU: nobody tries, and they run kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from all_layers_model import SIDE
from all_layers_on_gpu import odd_on_gpu, streamed
from fallback_net import images, sorting_model
from simulated_gpu import GPU, Gpu
from torch import Tensor, nn

from split_infer_ros.buffers.memory_pool import MemoryPool
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.engines.compute import Backbone
from split_infer_ros.engines.cuda.model_memory import PooledBackbone
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.engines.traced_part import PartChain
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.operator_placement.placed_backbone import make_backbone
from split_infer_ros.runtime.streams import current_fence
from split_infer_ros.server.execution.merge_runner import MergeRunner
from split_infer_ros.server.execution.recording import can_be_recorded
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.split.model import SplitModel
from split_infer_ros.vision_ops.implementations import ImplementationChoice
from split_infer_ros.weight_streaming.residency import Residency

pytestmark = pytest.mark.usefixtures("plain_operators")


class WaitingPart(EnginePart):
    """A part that waits for its inputs, as that of ONNX Runtime does."""

    def __init__(self) -> None:
        """Without a graph."""

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        current_fence(GPU).wait()
        return tuple(2 * tensor for tensor in tensors)

    def run_prepared(self, outputs: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        raise NotImplementedError


def falling_back() -> SplitModel:
    """The sorting model on the GPU, one of whose operators runs on the CPU."""
    model = sorting_model()
    return model.placed(GPU, replace(model.execution_config, operators=ImplementationChoice.FALLBACK))


UNRECORDABLE: dict[str, Callable[[], Backbone]] = {
    "engine": WaitingPart,
    "engine in a chain": lambda: PartChain([nn.Identity(), WaitingPart()]),
    "placed": lambda: make_backbone(falling_back(), "second"),
    "placed and pooled": lambda: PooledBackbone(
        make_backbone(falling_back(), "second"), MemoryPool(Policy.DEVICE, GPU)
    ),
    "streamed": lambda: streamed(odd_on_gpu(), Residency.ASYNCHRONOUS),
}


@pytest.mark.parametrize("name", UNRECORDABLE)
@torch.inference_mode()
def test_no_recording_of_an_unrecordable_model_is_tried(name: str, gpu: Gpu, caplog: pytest.LogCaptureFixture) -> None:
    backbone, gpu.fail_captures = UNRECORDABLE[name](), 1
    assert not can_be_recorded(backbone)
    given = torch.rand(2, 3, SIDE, SIDE).to(GPU) if name == "streamed" else images(2).to(GPU)
    runner = MergeRunner(GPU)
    runner.load({"a": backbone}, {"a": 1.0})
    for _ in range(2):
        runner.prepare({"a": given})
        found = runner.run({"a": given})["a"]
        for mine, other in zip(found, backbone(given), strict=True):
            torch.testing.assert_close(mine.cpu(), other.cpu())
    assert gpu.fail_captures == 1, "a recording was tried"
    assert runner.graphs is not None
    assert (len(runner.graphs), runner.graphs.most_missed) == (0, None)
    assert not caplog.records
    runner.close()
    if name == "streamed":
        backbone.close()  # type: ignore[attr-defined]


def test_models_beside_an_unrecordable_one_are_recorded(gpu: Gpu) -> None:
    model, given = sorting_model().placed(GPU), images(2).to(GPU)
    assert can_be_recorded(model.backbone("second"))
    runner = MergeRunner(GPU)
    runner.load({"a": model.backbone("second"), "b": WaitingPart()}, {"a": 1.0, "b": 1.0})
    for inputs in ({"a": given}, {"b": given}, {"a": given, "b": given}):
        runner.prepare(inputs)
    assert runner.graphs is not None
    assert len(runner.graphs) == 1
    found = runner.run({"a": given, "b": given})
    assert torch.equal(found["b"][0].cpu(), 2 * given.cpu())
    runner.close()


def test_pipeline_does_not_try_to_record_a_placed_backbone(gpu: Gpu) -> None:
    gpu.fail_captures = 1
    with LocalPipeline(falling_back()) as pipeline:
        pipeline.feed([Pixels.blank()] * 3)
        pipeline.finish()
        assert pipeline.backbone.ledger.counts().published == 3
    assert gpu.fail_captures == 1, "a recording was tried"
    assert pipeline.notices == []
