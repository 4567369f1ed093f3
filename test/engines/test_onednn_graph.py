from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import fx, nn

from split_infer_ros.engines import onednn_graph as module
from split_infer_ros.engines.onednn_graph import MAX_COMPILED, BlockedPart, has_onednn_graphs

pytestmark = pytest.mark.numeric

needs_graphs = pytest.mark.skipif(not has_onednn_graphs(), reason="this build of torch has no oneDNN graphs")


class Net(nn.Module):
    """The operations of a detector's blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.wide = nn.Sequential(
            nn.Conv2d(16, 32, 1),
            nn.ReLU6(),
            nn.Conv2d(32, 32, 3, stride=1, padding=1, groups=32),
            nn.Hardswish(),
        )
        self.narrow = nn.Conv2d(32, 16, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.first(x)
        wide = self.wide(x)
        return torch.cat([wide, x + self.narrow(wide)], 1), wide.mean((2, 3))


class Reused(Net):
    """A model in which oneDNN overwrites a map that is still needed."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.first(x)
        return (torch.cat([x, x + self.narrow(self.wide(x))], 1),)


@pytest.fixture
def part() -> fx.GraphModule:
    torch.manual_seed(0)
    return fx.symbolic_trace(Net().eval())


# Blocked and plain maps take different kernels, so results differ by the rounding of small sums.


@needs_graphs
def test_results_are_the_same_at_every_call(part: fx.GraphModule) -> None:
    blocked = BlockedPart(part)
    with torch.inference_mode():
        for count in (1, 1, 1, 3, 3, 2, 1, 3):
            images = torch.randn(count, 3, 32, 40)
            for found, expected in zip(blocked(images), part(images), strict=True):
                assert found.shape == expected.shape
                torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert blocked.num_compiled == 2, "of 1 and 3 images, not of 2, which came once"


@needs_graphs
def test_inputs_of_any_layout_give_the_same_results(part: fx.GraphModule) -> None:
    blocked, images = BlockedPart(part), torch.randn(2, 3, 32, 40)
    permuted = images.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    layouts = [images, images.contiguous(memory_format=torch.channels_last), permuted]
    with torch.inference_mode():
        results = [blocked(each)[0] for _ in range(2) for each in layouts]
        for found in results:
            torch.testing.assert_close(found, results[0], atol=1e-5, rtol=1e-5)
    assert blocked.num_compiled == 1


@needs_graphs
def test_at_most_a_fixed_number_of_calls_is_compiled(part: fx.GraphModule) -> None:
    blocked = BlockedPart(part)
    with torch.inference_mode():
        for size in (8, 16, 24, 32, 40):
            for _ in range(2):
                blocked(torch.zeros(1, 3, size, size))
    assert blocked.num_compiled == MAX_COMPILED


@pytest.mark.parametrize("count", [1, 2])
def test_no_map_is_overwritten(count: int) -> None:
    torch.manual_seed(0)
    net = fx.symbolic_trace(Reused().eval())
    blocked, images = BlockedPart(net), torch.randn(count, 3, 32, 32)
    with torch.inference_mode():
        (expected,) = net(images)
        for _ in range(4):
            torch.testing.assert_close(blocked(images)[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fault", ["raises", "differs"])
def test_what_cannot_be_compiled_runs_packed(
    part: fx.GraphModule, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def freeze(traced: Any) -> Any:
        if fault == "raises":
            raise RuntimeError("no such operation")
        return lambda *tensors: tuple(each + 1 for each in traced(*tensors))

    monkeypatch.setattr(module.torch.jit, "freeze", freeze)
    blocked, images = BlockedPart(part), torch.randn(1, 3, 32, 32)
    with caplog.at_level(logging.WARNING), torch.inference_mode():
        for _ in range(4):
            torch.testing.assert_close(blocked(images), part(images), atol=1e-5, rtol=1e-5)
    assert blocked.num_compiled == 0
    assert len(caplog.messages) == 1, "the warning comes once, and compiling is not tried again"
    assert "Features are not blocked" in caplog.text


def test_the_process_wide_switch_is_restored(part: fx.GraphModule) -> None:
    before = torch.jit.onednn_fusion_enabled()
    has_onednn_graphs()
    blocked = BlockedPart(part)
    with torch.inference_mode():
        for _ in range(2):
            blocked(torch.zeros(1, 3, 16, 16))
    assert torch.jit.onednn_fusion_enabled() == before
