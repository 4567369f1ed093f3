"""Merged and fused layers, run by Triton's interpreter: their results, and what they load."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreted_layers import (
    LayerSpec,
    are_fused,
    counts,
    difference,
    interpreting_process,
    nested_searches,
    similar_pairs,
)
from torch import nn

from split_infer_ros.vision_ops.fused_layers import FusedLayers
from split_infer_ros.vision_ops.implementations import record_task
from split_infer_ros.vision_ops.merged_layers import MAX_REQUESTS, MergedLayer, can_be_merged

EXAMPLES = settings(
    max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
Child = Callable[..., Any]


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    with interpreting_process() as call:
        yield call


@st.composite
def convolutions(draw: st.DrawFn) -> LayerSpec:
    kernel, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    padding, reach = draw(st.integers(0, 3)), dilation * (kernel - 1) + 1
    least = max(1, reach - 2 * padding)
    rows, columns = (draw(st.integers(least, least + 8)) for _ in "yx")
    channels = draw(st.integers(1, 20))
    arguments = {"in_channels": channels, "out_channels": draw(st.integers(1, 70)), "kernel_size": kernel}
    arguments |= {"stride": draw(st.integers(1, 3)), "padding": padding, "dilation": dilation}
    arguments["bias"] = draw(st.booleans())
    return "Conv2d", arguments, (draw(st.integers(1, MAX_REQUESTS)), channels, rows, columns)


@st.composite
def dense_layers(draw: st.DrawFn) -> LayerSpec:
    channels = draw(st.integers(1, 70))
    arguments = {"in_features": channels, "out_features": draw(st.integers(1, 70)), "bias": draw(st.booleans())}
    return "Linear", arguments, (draw(st.integers(1, MAX_REQUESTS)), channels)


layers = convolutions() | dense_layers()


@EXAMPLES
@given(layer=layers)
def test_a_merged_layer_gives_what_torch_gives(child: Child, layer: LayerSpec) -> None:
    child(difference, [layer])


@EXAMPLES
@given(first=layers, second=layers)
def test_fused_layers_give_what_torch_gives(child: Child, first: LayerSpec, second: LayerSpec) -> None:
    child(difference, [first, second])


def convolution(requests: int, side: int = 17) -> LayerSpec:
    """5 tiles of places and 2 of output channels, with 9 places of the window and 2 tiles of input channels."""
    arguments = {"in_channels": 20, "out_channels": 70, "kernel_size": 3, "padding": 1}
    return "Conv2d", arguments, (requests, 20, side, side)


def dense(requests: int) -> LayerSpec:
    return "Linear", {"in_features": 40, "out_features": 70}, (requests, 40)


def test_every_program_of_a_merged_layer_loads_as_much(child: Child) -> None:
    for layer in (convolution(3), dense(3)):
        every, one = child(counts, [layer]), child(counts, [layer], 1)
        assert every.counted == every.programs == one.programs
        assert one.counted == 1
        assert every.loads == every.all_loads == one.all_loads


@pytest.mark.parametrize("requests", range(1, MAX_REQUESTS + 1))
def test_weights_are_loaded_once_for_all_requests(child: Child, requests: int) -> None:
    """Each turn loads 16 x 64 weights, and for each request 64 x 16 values. The bias has 64 numbers."""
    found = child(counts, [convolution(requests)], 1)
    assert found.programs == 5 * 2
    assert found.loads == 9 * 2 * 16 * (64 + 64 * requests) + 64
    found = child(counts, [dense(requests)], 1)
    assert found.programs == 2
    assert found.loads == 3 * 16 * (64 + 16) + 64, "one tile has the rows of all requests"


@pytest.mark.parametrize("turned", [False, True])
def test_a_fused_launch_has_the_programs_and_loads_of_both(child: Child, turned: bool) -> None:
    pair = [convolution(2), dense(3)]
    alone = [child(counts, [layer]) for layer in pair]
    fused = child(counts, pair[::-1] if turned else pair)
    assert fused.programs == fused.counted == sum(each.programs for each in alone)
    assert fused.loads == sum(each.loads for each in alone)


def test_layers_that_cannot_be_resident_together_are_not_fused(child: Child) -> None:
    """The compiler is asked once, and results are those of torch in any case."""
    pair = [convolution(1), dense(1)]
    assert child(are_fused, pair, 128) == ([True, True], 1)
    assert child(are_fused, pair, 129) == ([False, False], 1)
    assert child(are_fused, pair, RuntimeError("out of resource")) == ([False, False], 1)


def test_a_rejected_pair_decides_nothing_for_similar_pairs(child: Child, tmp_path: Path) -> None:
    """Sizes 17 and 18 have one task. A rejection is no measurement and no failure."""
    found = child(similar_pairs, str(tmp_path), [convolution(1, 17), dense(1)], [convolution(1, 18), dense(1)])
    assert found == {"rejected": 0, "measured": 2, "fused": [True, False], "warnings": []}


def test_the_time_of_no_search_is_counted_twice(child: Child, tmp_path: Path) -> None:
    assert child(nested_searches, str(tmp_path), [convolution(1), dense(1)]) == 0


@pytest.mark.parametrize(
    ("layer", "can"),
    [
        (nn.Conv2d(3, 8, 3, 2, 1, 2), True),
        (nn.Linear(3, 8), True),
        (nn.Conv2d(4, 8, 3, groups=2), False),
        (nn.Conv2d(3, 8, (1, 3)), False),
        (nn.Conv2d(3, 8, 3, padding="same"), False),
        (nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"), False),
        (nn.Linear(3, 8, dtype=torch.float64), False),
        (nn.Conv2d(3, 8, 3, dtype=torch.float64), False),
        (nn.ReLU(), False),
    ],
    ids=repr,
)
def test_which_layers_can_be_merged(layer: Any, can: bool) -> None:
    assert can_be_merged(layer) is can
    if not can:
        with pytest.raises(ValueError, match="cannot be merged; merged kernels take dense layers"):
            MergedLayer(layer)


def test_the_library_computes_the_layers_on_a_cpu() -> None:
    torch.manual_seed(0)
    plain, other = nn.Linear(4, 3).requires_grad_(False), nn.Conv2d(2, 3, 2).requires_grad_(False)
    x, y = torch.randn(7, 5, 4), torch.randn(6, 2, 4, 4)
    one, two = FusedLayers(MergedLayer(plain), MergedLayer(other, 0.0, 0.5))(x, y)
    assert torch.equal(one, plain(x))
    assert torch.equal(two, other(y).clamp(0.0, 0.5))


def test_kernels_take_the_requests_of_a_window() -> None:
    layer = MergedLayer(nn.Linear(4, 3))
    assert [layer.takes(torch.zeros(size, 4)) for size in (0, 1, MAX_REQUESTS, MAX_REQUESTS + 1)] == [0, 1, 1, 0]
    assert not layer.takes(torch.zeros(2, 3, 4))


def test_layers_of_other_kernels_have_other_tasks() -> None:
    """Sizes are rounded, but the number of requests and the types are not."""

    def task(
        requests: int = 3, padding: int = 0, dilation: int = 1, dtype: torch.dtype = torch.float32
    ) -> tuple[str, str]:
        layer = MergedLayer(nn.Conv2d(8, 8, 3, padding=padding, dilation=dilation))
        other, y = MergedLayer(nn.Linear(4, 3, dtype=dtype)), torch.zeros(1, 4, dtype=dtype)
        x = torch.zeros(requests, 8, 9, 9)
        one, two = record_task("", x, layer.sizes(x)), record_task("", x, FusedLayers(layer, other).sizes(x, y))
        return str(one), str(two)

    changed = [task(requests=4), task(padding=1), task(dilation=2), task(dtype=torch.float16)]
    assert all(each[1] != task()[1] for each in changed)
    assert all(each[0] != task()[0] for each in changed[:-1])
    assert len({task(requests=requests) for requests in range(1, MAX_REQUESTS + 1)}) == MAX_REQUESTS


def test_kernels_get_weights_and_bias_without_strides() -> None:
    weight = torch.randn(4, 3)
    dense, pointwise = nn.Linear(4, 3).requires_grad_(False), nn.Conv2d(4, 3, 1).requires_grad_(False)
    dense.weight, dense.bias = nn.Parameter(weight.t()), nn.Parameter(torch.randn(6)[::2])
    pointwise.weight = nn.Parameter(weight.t()[:, :, None, None])
    for layer in (dense, pointwise):
        merged = MergedLayer(layer)
        assert torch.equal(merged.weights, weight.t())
        assert merged.weights.is_contiguous()
        assert merged.bias.is_contiguous()
