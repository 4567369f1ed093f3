"""Operators on a GPU give what they give on the host, in each implementation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from real_gpu import GPU, work_of_the_gpu

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.captures import capture
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.vision_ops.box_nms import box_nms
from split_infer_ros.vision_ops.implementations import ImplementationChoice, use_implementation
from split_infer_ros.vision_ops.multibox_decode import multibox_decode
from split_infer_ros.vision_ops.roi_align import roi_align


@pytest.fixture(params=[ImplementationChoice.PLAIN, ImplementationChoice.TRITON], ids=lambda choice: choice.value)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ImplementationChoice:
    """The suppression takes this implementation, whichever is faster."""
    monkeypatch.setattr(
        "split_infer_ros.vision_ops.box_nms.run_fastest",
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
def test_kernels_sort_and_sum_like_torch(count: int) -> None:
    from split_infer_ros.vision_ops.kernels.prefix_sum import sum_in_stages  # Triton is optional
    from split_infer_ros.vision_ops.kernels.segmented_argsort import argsort_by_merging

    random = torch.Generator().manual_seed(count)
    values = torch.randint(-50, 50, (count,), generator=random)
    borders = torch.randint(0, count + 1, (20,), generator=random).sort().values
    offsets = torch.cat([torch.tensor([0]), borders, torch.tensor([count])])
    keys = (torch.arange(21).repeat_interleave(offsets.diff()) << 32) + values
    assert torch.equal(argsort_by_merging(keys.to(GPU), offsets.to(GPU)).cpu(), keys.argsort(stable=True))
    assert torch.equal(sum_in_stages(values.to(GPU)).cpu(), values.cumsum(0))
    torch.testing.assert_close(sum_in_stages(values.float().to(GPU)).cpu(), values.float().cumsum(0))


@pytest.mark.parametrize("labelled", [False, True])
def test_kernels_suppress_without_waiting(labelled: bool) -> None:
    random = torch.Generator().manual_seed(3)
    corners = torch.rand((2, 500, 2), generator=random) * 100
    boxes = torch.cat([corners, corners + 20], dim=2)
    scores = torch.rand((2, 500) if labelled else (2, 500, 5), generator=random)
    labels = torch.randint(0, 5, (2, 500), generator=random) if labelled else None
    limits = {"score_threshold": 0.1, "iou_threshold": 0.5, "max_detections": 50}
    if not labelled:
        limits["max_per_class"] = 60
    expected = box_nms(boxes, scores, labels, **limits)
    arguments = boxes.to(GPU), scores.to(GPU), None if labels is None else labels.to(GPU)
    with use_implementation(ImplementationChoice.TRITON):
        box_nms(*arguments, **limits)  # compiles
        torch.cuda.set_sync_debug_mode("error")  # whatever makes the host wait raises
        try:
            found = box_nms(*arguments, **limits)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found.cpu(), expected)


def test_suppression_can_be_recorded_in_a_graph() -> None:
    random = torch.Generator().manual_seed(4)
    corners = torch.rand((3, 200, 2), generator=random) * 50
    boxes = torch.cat([corners, corners + 10], dim=2)
    first, second = torch.rand((2, 3, 200, 4), generator=random)
    limits = {"score_threshold": 0.5, "iou_threshold": 0.4, "max_detections": 30}
    given_boxes, given, stream = boxes.to(GPU), first.to(GPU), Stream(GPU)
    with use_implementation(ImplementationChoice.TRITON):
        recorded = capture(lambda: box_nms(given_boxes, given, **limits), stream)
    for scores in (first, second):
        with stream.work("replay"):
            given.copy_(scores)
            recorded.launch()
        stream.fence().wait()
        assert torch.equal(recorded.results.cpu(), box_nms(boxes, scores, **limits))


def test_only_bounds_of_regions_come_to_the_host() -> None:
    features, corners = torch.rand(2, 4, 20, 20), torch.rand(30, 2) * 200
    regions, images = torch.cat([corners, corners + 50 - torch.rand(30, 2) * 60], dim=1), torch.arange(30) % 2
    arguments = features.to(GPU), regions.to(GPU), images.to(GPU), (7, 7)
    roi_align(*arguments, spatial_scale=0.1)
    names = work_of_the_gpu(lambda: roi_align(*arguments, spatial_scale=0.1))
    if not names:
        pytest.skip("PyTorch's profiler sees no kernels on this machine")
    assert len([name for name in names if "DtoH" in name]) == 1
    found = roi_align(*arguments, spatial_scale=0.1)
    torch.testing.assert_close(found.cpu(), roi_align(features, regions, images, (7, 7), spatial_scale=0.1))
    with pytest.raises(ConfigurationError, match="NaN or infinite"):
        roi_align(features.to(GPU), torch.full((1, 4), torch.nan, device=GPU), images[:1].to(GPU), (7, 7))


def test_implementations_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    corners, scores = torch.rand(3, 70, 2) * 100, torch.rand(3, 70)
    boxes = torch.cat([corners, corners + 30], dim=2)
    limits = {"score_threshold": 0.2, "iou_threshold": 0.5, "max_detections": 7}
    found = box_nms(boxes.to(GPU), scores.to(GPU), **limits)
    assert torch.equal(found.cpu(), box_nms(boxes, scores, **limits))
    assert (tmp_path / "split_infer_ros" / "tuning.jsonl").read_text().count('"operator":"box_nms"') == 2


def test_decoded_boxes_are_as_on_the_host() -> None:
    offsets, anchors = torch.randn(4, 100, 4), torch.rand(100, 2).repeat(1, 2) * 100 + torch.tensor([0, 0, 20, 30])
    found = multibox_decode(offsets.to(GPU), anchors.to(GPU), size=(320, 320)).cpu()
    torch.testing.assert_close(found, multibox_decode(offsets, anchors, size=(320, 320)))
