"""Operators on a GPU give what they give on the host, in each implementation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from real_gpu import GPU

from split_infer_ros.vision_ops.box_nms import box_nms
from split_infer_ros.vision_ops.implementations import ImplementationChoice
from split_infer_ros.vision_ops.multibox_decode import multibox_decode
from split_infer_ros.vision_ops.prefix_sum import prefix_sum
from split_infer_ros.vision_ops.segmented_argsort import segmented_argsort

OPERATORS = ("box_nms", "prefix_sum", "segmented_argsort")


@pytest.fixture(params=[ImplementationChoice.PLAIN, ImplementationChoice.TRITON], ids=lambda choice: choice.value)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ImplementationChoice:
    """Every operator takes this implementation, whichever is faster."""
    for operator in OPERATORS:
        monkeypatch.setattr(
            f"split_infer_ros.vision_ops.{operator}.run_fastest",
            lambda name, values, sizes, implementations: implementations[request.param](),
        )
    return request.param


@pytest.mark.parametrize(("images", "each", "classes"), [(1, 10, 1), (1, 3000, 1), (16, 1000, 20), (3, 400, 90)])
@pytest.mark.parametrize("heavy", [False, True])
def test_boxes_are_kept_as_on_the_host(
    implementation: ImplementationChoice, images: int, each: int, classes: int, heavy: bool
) -> None:
    random = torch.Generator().manual_seed(0)
    corners = (torch.rand((images, each, 2), generator=random) * (5 if heavy else 300)).round()
    boxes = torch.cat([corners, corners + (torch.rand(corners.shape, generator=random) * 60).round() + 20], dim=2)
    scores = (torch.rand((images, each, classes), generator=random) * 500).round() / 500
    limits = {"score_threshold": 0.2, "iou_threshold": 0.5, "max_detections": 100, "max_per_class": 200}
    expected = box_nms(boxes, scores, **limits)
    found = box_nms(boxes.to(GPU), scores.to(GPU), **limits)
    assert found.device == GPU
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("count", [1, 100, 5000, 100_000])
def test_order_and_sums_are_as_on_the_host(implementation: ImplementationChoice, count: int) -> None:
    random = torch.Generator().manual_seed(count)
    values = torch.randint(-50, 50, (count,), generator=random)
    borders = torch.randint(0, count + 1, (20,), generator=random).sort().values
    offsets = torch.cat([torch.tensor([0]), borders, torch.tensor([count])])
    for kind in (values.to(torch.int32), values.float(), values.half()):
        found = segmented_argsort(kind.to(GPU), offsets.to(GPU), descending=True)
        assert torch.equal(found.cpu(), segmented_argsort(kind, offsets, descending=True))
    assert torch.equal(prefix_sum(values.to(GPU)).cpu(), prefix_sum(values))
    torch.testing.assert_close(prefix_sum(values.float().to(GPU)).cpu(), prefix_sum(values.float()))


def test_implementations_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    values = torch.rand(16, 3234, device=GPU)
    torch.testing.assert_close(prefix_sum(values), values.cumsum(-1))
    assert (tmp_path / "split_infer_ros" / "tuning.jsonl").read_text().count('"operator":"prefix_sum"') == 2


def test_decoded_boxes_are_as_on_the_host() -> None:
    offsets, anchors = torch.randn(4, 100, 4), torch.rand(100, 2).repeat(1, 2) * 100 + torch.tensor([0, 0, 20, 30])
    found = multibox_decode(offsets.to(GPU), anchors.to(GPU), size=(320, 320)).cpu()
    torch.testing.assert_close(found, multibox_decode(offsets, anchors, size=(320, 320)))
