from __future__ import annotations

import torch
from partitions import split
from torch import nn
from torchvision import models as zoo

from split_infer_ros.split.graph import fingerprint, prepare
from split_infer_ros.split.partitions import split_into_segments
from split_infer_ros.split.traced_split_points import find_split_points


def test_segments_up_to_a_split_point_are_its_backbone() -> None:
    graph = prepare(zoo.mobilenet_v2())
    split_points = find_split_points(graph, (3, 64, 64))
    segments = split_into_segments(graph, split_points)
    assert len(segments) == len(split_points) - 1
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        crossing: tuple[torch.Tensor, ...] = (images,)
        expected = graph(images)
        for split_point, segment in zip(split_points[1:], segments, strict=True):
            crossing = segment(*crossing)
            partitions = split(graph, split_point)
            for found, expected_one in zip(crossing, partitions.backbone(images), strict=True):
                assert torch.equal(found, expected_one), split_point.name
            assert torch.equal(partitions.head(*crossing)[0], expected)


def test_a_fingerprint_depends_on_shapes_but_not_weights() -> None:
    def net(channels: int, kernel: int = 3, stride: int = 1) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, channels, kernel, stride), nn.ReLU(), nn.Flatten())

    first = fingerprint(prepare(net(4)))
    assert fingerprint(prepare(net(4))) == first
    others = [net(5), net(4, 5), net(4, stride=2), nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU6(), nn.Flatten())]
    assert len({first, *(fingerprint(prepare(other)) for other in others)}) == 5
