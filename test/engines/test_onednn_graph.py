from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import fx, nn

from split_infer_ros.engines import onednn_graph as module
from split_infer_ros.engines.onednn_graph import MOST_KINDS, Blocked, can_be_blocked

needs_graphs = pytest.mark.skipif(not can_be_blocked(), reason="this build of torch has no oneDNN graphs")


class Net(nn.Module):
    """What blocks of detectors are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, 2, 1)
        self.wide = nn.Sequential(
            *(nn.Conv2d(16, 32, 1), nn.ReLU6(), nn.Conv2d(32, 32, 3, 1, 1, groups=32), nn.Hardswish())
        )
        self.narrow = nn.Conv2d(32, 16, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.first(x)
        wide = self.wide(x)
        return torch.cat([wide, x + self.narrow(wide)], 1), wide.mean((2, 3))


class Reused(Net):
    """Of which oneDNN spoils a map that is still needed."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.first(x)
        return (torch.cat([x, x + self.narrow(self.wide(x))], 1),)


@pytest.fixture
def part() -> fx.GraphModule:
    torch.manual_seed(0)
    return fx.symbolic_trace(Net().eval())


def compiled(part: Blocked) -> int:
    return sum(run is not part._packed for run in part._compiled.values())


# Blocked maps and plain ones take different kernels: results are the same but for the rounding of small sums.


@needs_graphs
def test_results_are_the_same_at_every_call(part: fx.GraphModule) -> None:
    blocked = Blocked(part)
    with torch.inference_mode():
        for count in (1, 1, 1, 3, 3, 2, 1, 3):
            images = torch.randn(count, 3, 32, 40)
            for found, expected in zip(blocked(images), part(images), strict=True):
                assert found.shape == expected.shape
                torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert compiled(blocked) == 2, "of 1 and 3 images, not of 2, which came once"


@needs_graphs
def test_features_may_lie_in_any_way(part: fx.GraphModule) -> None:
    blocked, images = Blocked(part), torch.randn(2, 3, 32, 40)
    strange = images.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    laid_out = [images, images.contiguous(memory_format=torch.channels_last), strange]
    with torch.inference_mode():
        results = [blocked(each)[0] for _ in range(2) for each in laid_out]
        for found in results:
            torch.testing.assert_close(found, results[0], atol=1e-5, rtol=1e-5)
    assert compiled(blocked) == 1


@needs_graphs
def test_no_more_kinds_than_there_is_room_for(part: fx.GraphModule) -> None:
    blocked = Blocked(part)
    with torch.inference_mode():
        for size in (8, 16, 24, 32, 40):
            for _ in range(2):
                blocked(torch.zeros(1, 3, size, size))
    assert compiled(blocked) == MOST_KINDS


@pytest.mark.parametrize("count", [1, 2])
def test_no_map_is_spoilt(count: int) -> None:
    torch.manual_seed(0)
    net = fx.symbolic_trace(Reused().eval())
    blocked, images = Blocked(net), torch.randn(count, 3, 32, 32)
    with torch.inference_mode():
        (expected,) = net(images)
        for _ in range(4):
            torch.testing.assert_close(blocked(images)[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fault", ["raises", "differs"])
def test_what_cannot_be_compiled_is_packed(
    part: fx.GraphModule, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def freeze(traced: Any) -> Any:
        if fault == "raises":
            raise RuntimeError("no such operation")
        return lambda *tensors: tuple(each + 1 for each in traced(*tensors))

    monkeypatch.setattr(module.torch.jit, "freeze", freeze)
    blocked, images = Blocked(part), torch.randn(1, 3, 32, 32)
    with caplog.at_level(logging.WARNING), torch.inference_mode():
        for _ in range(4):
            torch.testing.assert_close(blocked(images), part(images), atol=1e-5, rtol=1e-5)
    assert compiled(blocked) == 0
    assert len(caplog.messages) == 1, "said once, and not tried again"
    assert "Features are not blocked" in caplog.text


def test_the_switch_of_the_process_is_left_as_it_was(part: fx.GraphModule) -> None:
    before = torch.jit.onednn_fusion_enabled()
    can_be_blocked()
    blocked = Blocked(part)
    with torch.inference_mode():
        for _ in range(2):
            blocked(torch.zeros(1, 3, 16, 16))
    assert torch.jit.onednn_fusion_enabled() == before
