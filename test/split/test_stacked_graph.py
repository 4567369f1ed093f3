"""Graphs of several models as one graph. Its sums are those of the models, in any order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.split.graph import prepare
from split_infer_ros.split.stacked_graph import stack_graphs
from split_infer_ros.split.stacked_modules import PerModel, StackedLinear

pytestmark = pytest.mark.numeric

SIDE, CHANNELS = 8, 6
SHAPE = (3, SIDE, SIDE)
ROUNDING = 1e-5
"""Of the largest result: sums of at most 54 products in float32, in any order, differ by less than 54 x 2^-24 = 3.2e-6
of the sum of their sizes, which is a few times the largest result."""


class Convolutions(nn.Module):
    """Operations that have rules of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, CHANNELS, 3, padding=1, bias=False), nn.ReLU(inplace=True))
        self.norm = nn.BatchNorm2d(CHANNELS)  # behind an activation, so it is not folded
        self.depthwise = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.scale, self.mask = nn.Conv2d(CHANNELS, CHANNELS, 1), nn.Conv2d(CHANNELS, 1, 1)
        self.up = nn.ConvTranspose2d(CHANNELS, 4, 2, stride=2)
        self.groups = nn.GroupNorm(2, 4)
        self.down = nn.MaxPool2d(4)
        self.last = nn.Sequential(nn.Flatten(), nn.Linear((CHANNELS + 4) * 16 // 4, 16), nn.SiLU(), nn.Linear(16, 5))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.stem(images))
        x = 0.5 * x + self.depthwise(x)
        x = x * self.scale(self.pool(x)).sigmoid()  # a number for each channel
        x = x * torch.sigmoid(self.mask(x))  # a number for each place, the same for all channels
        up = self.down(self.groups(self.up(x)))
        x = torch.cat([nn.functional.max_pool2d(x, 2), up], 1)
        return x, self.last(nn.functional.max_pool2d(x, 2))


class Others(nn.Module):
    """Operations that run under vmap: attention over places, weights without a module, sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 2, stride=2)
        self.position = nn.Parameter(torch.randn(1, 16, 8))
        self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        first, second = self.stem(images).chunk(2, 1)
        x = torch.cat([second, first], dim=1)
        torch._assert(x.dim() == 4, "maps")
        x = x.reshape(x.size(0), x.shape[1], -1).permute(0, 2, 1) + self.position
        x = self.norm(x)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.last(x)[:, 0].softmax(-1)  # type: ignore[no-any-return]


class NumberOfModels(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) * images.sum().item()


class Constant(nn.Module):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images.relu(), torch.arange(3.0)


def models(kind: type[nn.Module], count: int = 3) -> list[Any]:
    torch.manual_seed(0)
    made = [kind() for _ in range(count)]
    for module in made:
        for each in module.modules():
            if isinstance(each, nn.BatchNorm2d):
                each.running_mean = torch.randn(CHANNELS)
                each.running_var = 0.5 + torch.rand(CHANNELS)
    return [prepare(module, SHAPE) for module in made]


def images(size: int, count: int = 3) -> list[Tensor]:
    random = torch.Generator().manual_seed(size)
    return [torch.randn((size, *SHAPE), generator=random) for _ in range(count)]


def tensors(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@torch.inference_mode()
def check(network: nn.Module, singles: list[Any], size: int) -> None:
    given = images(size, len(singles))
    found = network(torch.cat(given, dim=1))
    for place, (single, own) in enumerate(zip(singles, given, strict=True)):
        for stacked, expected in zip(found, tensors(single(own)), strict=True):
            assert expected.std() > 1e-3, "the comparison means something"
            assert stacked.shape == (size, len(singles), *expected.shape[1:])
            assert (stacked[:, place] - expected).abs().max() <= ROUNDING * max(1.0, expected.abs().max())


@pytest.mark.parametrize("kind", [Convolutions, Others])
def test_each_model_has_its_own_results(kind: type[nn.Module]) -> None:
    singles = models(kind)
    network = stack_graphs(singles, SHAPE)
    for size in (1, 2, 5):
        check(network, singles, size)


def test_rules_cover_what_they_name() -> None:
    network = stack_graphs(models(Convolutions), SHAPE)
    assert not any(isinstance(module, PerModel) for module in network.modules())
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert sorted(module.groups for module in convolutions) == [3, 3, 3, 3 * CHANNELS]
    assert sum(isinstance(module, StackedLinear) for module in network.modules()) == 2
    others = stack_graphs(models(Others), SHAPE)
    assert any(isinstance(module, PerModel) for module in others.modules())


class Counter(TorchDispatchMode):
    """Counts the calls of each operator that computes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] = self.calls.get(func.overloadpacket.__name__, 0) + 1
        return func(*args, **(kwargs or {}))


def test_three_models_take_the_launches_of_one() -> None:
    """One model's matrix products with bias are ``addmm``, those of several models ``baddbmm``."""
    singles = models(Convolutions)
    network = stack_graphs(singles, SHAPE)
    given = images(2)
    with torch.no_grad():  # inference mode does not take linear layers apart
        with Counter() as alone:
            singles[0](given[0])
        with Counter() as together:
            network(torch.cat(given, dim=1))
    assert alone.calls["addmm"] == together.calls["baddbmm"] == 2
    for name in ("convolution", "native_batch_norm", "relu_", "sigmoid", "max_pool2d_with_indices", "silu"):
        assert together.calls.get(name) == alone.calls.get(name), name
    assert alone.calls["convolution"] == 5


def test_members_keep_their_weights() -> None:
    singles = models(Convolutions)
    before = [{name: tensor.clone() for name, tensor in single.state_dict().items()} for single in singles]
    stack_graphs(singles, SHAPE)
    for single, state in zip(singles, before, strict=True):
        torch.testing.assert_close(single.state_dict(), state, rtol=0, atol=0)


def test_module_that_is_called_twice_is_stacked_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, images: Tensor) -> Tensor:
            return self.convolution(self.convolution(images))  # type: ignore[no-any-return]

    singles = models(Twice, 2)
    network = stack_graphs(singles, SHAPE)
    assert len([module for module in network.modules() if isinstance(module, nn.Conv2d)]) == 1
    check(network, singles, 2)


def test_threads_may_use_a_network_at_once() -> None:
    """``torch.func.functional_call`` changes the module that it calls."""
    singles = models(Others)
    network = stack_graphs(singles, SHAPE)
    with ThreadPoolExecutor(2) as threads:
        for found in [threads.submit(check, network, singles, 1 + number % 3) for number in range(12)]:
            found.result()


def test_operation_that_looks_at_values_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'item' gives no tensor \(\w+\) but depends on the model"):
        stack_graphs(models(NumberOfModels), SHAPE)


def test_result_that_all_models_share_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"The result '\w+' is the same for all models"):
        stack_graphs(models(Constant), SHAPE)
