"""Parts whose last operators write into given memory.

Results are compared bit for bit: the same kernel runs on the same values and strides, with the same number of threads.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from split_infer_ros.buffers.layout import dense_strides
from split_infer_ros.engines.out_forms import OutForm, find_out_form
from split_infer_ros.engines.traced_part import PartChain
from split_infer_ros.engines.writing_part import WritingPart, writing_part
from split_infer_ros.split.export import export_for

pytestmark = pytest.mark.numeric

Forward = Callable[[nn.Module, Tensor], Any]


class Net(nn.Module):
    """A convolution, and whatever a test puts behind it."""

    def __init__(self, end: Forward, **modules: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.end = end
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, images: Tensor) -> Any:
        found = self.end(self, self.first(images))
        return found if isinstance(found, tuple) else (found,)


def traced(end: Forward, **modules: nn.Module) -> fx.GraphModule:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for module in modules.values():
            module.eval()
        return fx.symbolic_trace(Net(end, **modules).eval().to(memory_format=torch.channels_last))


def images(count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, 8, 6, generator=generator).contiguous(memory_format=torch.channels_last)


def own_memory(shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Returns memory full of NaN, so that what is not written shows."""
    return torch.empty_strided(shape, strides, dtype=dtype).fill_(torch.nan)


def copies_of(work: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        work()
    return sum(each.name == "aten::copy_" for each in found.events())  # type: ignore[union-attr]


@torch.inference_mode()
def check_written(part: nn.Module, num_copied: int = 0) -> None:
    """Checks that a part writes what it returns, in the same layout, with so many copies.

    Copies that the part makes anyway do not count: ``mean`` copies a scalar, and ``addmm`` copies the bias.
    """
    writing = writing_part(part)
    assert isinstance(writing, WritingPart)
    assert len(writing.copied) == num_copied
    for count in (2, 1, 3):
        expected = part(images(count))
        assert all(torch.equal(*pair) for pair in zip(writing(images(count)), expected, strict=True))
        writing.start(images(count)).finish([torch.empty_like(each) for each in expected])  # the forms are tried here
        started = writing.start(images(count))
        assert started.strides == tuple(map(dense_strides, expected))
        memory = [
            own_memory(each.shape, stride, each.dtype) for each, stride in zip(expected, started.strides, strict=True)
        ]
        own = copies_of(lambda: part(images(count)))
        assert copies_of(lambda: writing.start(images(count)).finish(memory)) == own + num_copied
        assert all(torch.equal(*pair) for pair in zip(memory, expected, strict=True))


ENDS: dict[str, tuple[Forward, dict[str, nn.Module]]] = {
    "relu of a sum, in place": (lambda net, x: net.act(x + x.sigmoid()), {"act": nn.ReLU(inplace=True)}),
    "relu6": (lambda net, x: net.act(x), {"act": nn.ReLU6(inplace=True)}),
    "silu in place": (lambda net, x: net.act(x), {"act": nn.SiLU(inplace=True)}),
    "hardswish": (lambda net, x: net.act(x), {"act": nn.Hardswish(inplace=True)}),
    "leaky relu": (lambda net, x: net.act(x), {"act": nn.LeakyReLU(0.1)}),
    "gelu": (lambda net, x: net.act(x), {"act": nn.GELU()}),
    "gelu by tanh": (lambda net, x: net.act(x), {"act": nn.GELU("tanh")}),
    "sigmoid": (lambda net, x: net.act(x), {"act": nn.Sigmoid()}),
    "sum": (lambda net, x: x + x.sigmoid(), {}),
    "sum in place": (lambda net, x: operator.iadd(x, 1.5), {}),
    "method": (lambda net, x: x.add(x.sigmoid()), {}),
    "broadcast product": (lambda net, x: x * x.mean((2, 3), keepdim=True), {}),
    "concatenation": (lambda net, x: torch.cat([x, x.relu(), x], dim=1), {}),
    "maximum": (lambda net, x: net.pool(x), {"pool": nn.MaxPool2d(2)}),
    "mean": (lambda net, x: x.mean((2, 3)), {}),
    "pooled and flat": (
        lambda net, x: net.drop(torch.flatten(net.pool(x), 1)),
        {"pool": nn.AdaptiveAvgPool2d(1), "drop": nn.Dropout(0.5)},
    ),
    "pooled by a function": (lambda net, x: functional.adaptive_avg_pool2d(x, (1, 1)).flatten(1), {}),
    "pooled to 2x3": (lambda net, x: functional.adaptive_avg_pool2d(x, (2, 3)), {}),
    "linear": (lambda net, x: net.last(x.mean((2, 3))), {"last": nn.Linear(6, 5)}),
    "linear, of tokens": (lambda net, x: net.last(x.flatten(2).contiguous()), {"last": nn.Linear(48, 5)}),
}


@pytest.mark.parametrize("end", ENDS)
def test_last_operator_writes_into_given_memory(end: str) -> None:
    forward, modules = ENDS[end]
    check_written(traced(forward, **modules))


@pytest.mark.parametrize("end", ["relu of a sum, in place", "silu in place", "sum", "pooled and flat", "concatenation"])
def test_exported_graphs_have_the_same_forms(end: str) -> None:
    forward, modules = ENDS[end]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        graph = export_for(Net(forward, **modules).eval(), (3, 8, 6), 2)
    writing = writing_part(graph)
    assert isinstance(writing, WritingPart)
    assert writing.copied == ()
    with torch.inference_mode():
        (expected,) = graph(images())
        memory = own_memory(expected.shape, dense_strides(expected), expected.dtype)
        writing.start(images()).finish([memory])
    assert torch.equal(memory, expected)


UNWRITABLE: dict[str, tuple[Forward, dict[str, nn.Module]]] = {
    "convolution on a CPU": (lambda net, x: x, {}),
    "layer norm": (lambda net, x: net.norm(x), {"norm": nn.LayerNorm([6, 8, 6])}),
    "selection": (lambda net, x: x[:, 0], {}),
    "linear without bias": (lambda net, x: net.last(x.mean((2, 3))), {"last": nn.Linear(6, 5, bias=False)}),
}


@pytest.mark.parametrize("end", UNWRITABLE)
def test_part_without_such_an_operator_stays_itself(end: str) -> None:
    forward, modules = UNWRITABLE[end]
    part = traced(forward, **modules)
    assert writing_part(part) is part


def test_each_result_is_written_or_copied_by_itself() -> None:
    part = traced(lambda net, x: (x.relu(), net.norm(x), x + x), norm=nn.LayerNorm([6, 8, 6]))
    check_written(part, num_copied=1)


def test_result_that_another_one_needs_is_copied() -> None:
    def end(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        doubled = x + x
        return doubled, doubled.relu()

    check_written(traced(end), num_copied=1)


def test_operator_does_not_run_behind_one_that_changes_its_input() -> None:
    def end(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        total = x + x
        return total, x.mul_(2.0).mean((2, 3))

    part = traced(end)
    writing = writing_part(part)
    assert isinstance(writing, WritingPart)
    assert writing.copied == ("add",)
    with torch.inference_mode():
        assert all(torch.equal(*pair) for pair in zip(writing(images()), part(images()), strict=True))


def test_operator_whose_form_gives_other_bits_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def nearly(x: Tensor, y: Tensor, *, out: Tensor) -> None:
        torch.add(x, y + 1e-6, out=out)

    def find_form(node: fx.Node, modules: Mapping[str, nn.Module]) -> OutForm | None:
        return nearly if node.target is operator.add else find_out_form(node, modules)

    monkeypatch.setattr("split_infer_ros.engines.writing_part.find_out_form", find_form)
    part = traced(lambda net, x: x + x.sigmoid())
    writing = writing_part(part)
    assert isinstance(writing, WritingPart)
    with torch.inference_mode():
        (expected,) = part(images())
        memory = torch.empty_like(expected)
        assert copies_of(lambda: writing.start(images()).finish([memory])) > 0
    assert torch.equal(memory, expected)


def test_arguments_that_a_form_does_not_know_are_left_to_torch() -> None:
    part = traced(lambda net, x: torch.add(x, x.sigmoid(), alpha=3))
    writing = writing_part(part)
    assert isinstance(writing, WritingPart)
    with torch.inference_mode():
        (expected,) = part(images())
        memory = torch.empty_like(expected)
        writing.start(images()).finish([memory])
    assert torch.equal(memory, expected)


def test_last_part_of_a_chain_writes() -> None:
    first, last = traced(lambda net, x: x[:, :3] + 1), traced(lambda net, x: x.relu())
    check_written(PartChain([first, last]))


def test_images_follow_each_other_if_they_must() -> None:
    """As in a recorded graph, of whose images fewer may be read. The values are the same bits in any layout."""
    part = traced(lambda net, x: x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) + 1)
    writing = writing_part(part)
    assert isinstance(writing, WritingPart)
    with torch.inference_mode():
        (expected,) = part(images(3))
        assert expected.stride(0) * 3 != expected.numel()
        assert writing.start(images(3)).strides == (expected.stride(),)
        started = writing.start(images(3), batched=True)
        memory = own_memory(expected.shape, started.strides[0], expected.dtype)
        started.finish([memory])
    assert memory.stride(0) * 3 == memory.numel()
    assert torch.equal(memory, expected)


def test_weights_are_shared_with_the_given_part() -> None:
    part = traced(lambda net, x: net.act(x), act=nn.ReLU())
    writing = writing_part(part)
    assert isinstance(writing, WritingPart)
    assert writing.body.get_submodule("first") is part.get_submodule("first")
