"""Models with merged layers, and two models whose n-th layers are fused: by the library, and by the interpreter."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from interpreted_layers import can_fuse_backbones, differences_of_models, interpreting_process
from torch import fx, nn

from split_infer_ros.engines.fused_graphs import fuse_backbones, fuse_graphs
from split_infer_ros.engines.merged_layers import merge_layers
from split_infer_ros.vision_ops.fused_layers import FusedLayers
from split_infer_ros.vision_ops.merged_layers import MergedLayer

IMAGES = {"small": torch.randn(2, 3, 18, 18), "other": torch.randn(3, 3, 20, 20)}


def nets() -> tuple[nn.Module, nn.Module]:
    """Two models of three and of four layers. One uses an activation twice, which no layer may take along."""
    torch.manual_seed(0)
    shared = nn.ReLU()
    small = nn.Sequential(
        nn.Conv2d(3, 8, 5, 2, 2),
        shared,
        nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3),
        nn.ReLU6(),
        nn.Flatten(),
        nn.Linear(48, 5),
    )
    other = nn.Sequential(
        nn.Conv2d(3, 20, 1), nn.SiLU(), nn.Conv2d(20, 6, 3, padding=2, dilation=2), shared, nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(24, 70), nn.ReLU(), nn.Linear(70, 3),
    )  # fmt: skip
    return small.eval().requires_grad_(False), other.eval().requires_grad_(False)


def merged_graphs() -> list[fx.GraphModule]:
    graphs = [fx.symbolic_trace(net) for net in nets()]
    for graph in graphs:
        merge_layers(graph)
    return graphs


def test_merged_layers_keep_the_results_of_a_model() -> None:
    for net, graph, images in zip(nets(), merged_graphs(), IMAGES.values(), strict=True):
        torch.testing.assert_close(graph(images), net(images), atol=1e-6, rtol=1e-6)  # maybe by another kernel
    small, other = merged_graphs()
    assert [type(each).__name__ for each in small.children()].count("MergedLayer") == 3
    assert sum(isinstance(each, MergedLayer) for each in other.modules()) == 4
    assert not any(isinstance(each, (nn.ReLU, nn.ReLU6)) for each in small.modules()), "layers apply them"


def test_the_nth_layers_are_fused_and_the_rest_run_alone() -> None:
    graphs = merged_graphs()
    joint = fuse_graphs(*graphs)
    found = joint(*IMAGES.values())
    for result, graph, images in zip(found, graphs, IMAGES.values(), strict=True):
        assert torch.equal(result, graph(images))
    called = [joint.get_submodule(str(node.target)) for node in joint.graph.nodes if node.op == "call_module"]
    assert sum(isinstance(module, FusedLayers) for module in called) == 3
    assert sum(isinstance(module, MergedLayer) for module in called) == 1


def test_a_value_that_later_layers_need_crosses_fused_layers() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)
            self.scale = nn.Parameter(torch.tensor(2.0), requires_grad=False)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.one(x)
            return x + self.scale * self.two(y), y

    net, images = Residual().requires_grad_(False), IMAGES["small"]
    graphs = [fx.symbolic_trace(net), *merged_graphs()[:1]]
    merge_layers(graphs[0])
    found, _ = fuse_graphs(*graphs)(images, images)
    torch.testing.assert_close(found, net(images), atol=1e-6, rtol=1e-6)


def test_only_two_graphs_with_merged_layers_are_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    small, other = merged_graphs()
    plain = fx.symbolic_trace(nets()[1])
    assert fuse_backbones({"small": small, "other": other}, IMAGES) is None, "a CPU fuses no layers"
    monkeypatch.setattr(FusedLayers, "is_fused", property(lambda _: True, lambda *_: None), raising=False)
    run = fuse_backbones({"small": small, "other": other}, IMAGES)
    assert run is not None
    found = run()
    assert torch.equal(found["small"], small(IMAGES["small"]))
    assert torch.equal(found["other"], other(IMAGES["other"]))
    for models in (
        {"small": small, "other": plain},
        {"small": small},
        dict.fromkeys("abc", small),
        {"a": len, "b": small},
    ):
        assert fuse_backbones(models, dict.fromkeys(models, IMAGES["small"])) is None


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_models_are_fused_for_batches_that_kernels_take() -> None:
    with interpreting_process() as child:
        fused = [child(can_fuse_backbones, list(nets()), [(1, 3, 18, 18), (n, 3, 20, 20)]) for n in (4, 8)]
    assert fused == [True, False]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_fused_kernels_give_what_the_models_give() -> None:
    shapes = [tuple(images.shape) for images in IMAGES.values()]
    with interpreting_process() as child:
        differences = child(differences_of_models, list(nets()), shapes)
    assert all(0 <= each < 1e-5 for each in differences), "up to 200 products of about 0.1 are summed in another order"
