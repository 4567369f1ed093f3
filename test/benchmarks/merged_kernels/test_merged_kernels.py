"""What is counted of the paper's layers, and what a report says of it."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks.common.claim import Verdict
from benchmarks.merged_kernels import __main__ as bench
from benchmarks.merged_kernels import counts as module
from benchmarks.merged_kernels.counts import Counts, Extent
from benchmarks.merged_kernels.layers import Loads, layers_of, loads_of, processes, resources_of
from split_infer_ros.vision_ops.launch_limits import KernelResources

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


def test_the_papers_models_have_their_layers() -> None:
    """The paper counts 18 layers of ResNet-18; three more are the convolutions beside its blocks."""
    assert {model: len(layers_of(model)) for model in bench.MODELS} == {"alexnet": 8, "resnet18": 21, "vgg16": 16}
    first, last = layers_of("vgg16")[0], layers_of("vgg16")[-1]
    assert (first.name, first.shape) == ("features.0", (3, 224, 224))
    assert (last.name, last.shape) == ("classifier.6", (4096,))


@needs_triton
def test_loads_of_a_layer_are_those_of_its_tiles() -> None:
    """ResNet-18's last 1x1 convolution: 7 x 7 places in one tile, 512 channels in 8, 256 input channels in 16 turns."""
    place = [layer.name for layer in layers_of("resnet18")].index("layer4.0.downsample.0")
    with processes(1, TRITON_INTERPRET="1") as pool:
        found = pool.submit(loads_of, "resnet18", place, (1, 3)).result(100.0)
    values, weights, bias = 8 * 16 * 16 * 64, 8 * 16 * 16 * 64, 8 * 64
    assert found[1] == Loads(*[values + weights + bias] * 3)
    assert found[3] == Loads(3 * (values + weights + bias), 3 * (values + weights + bias), 3 * values + weights + bias)


@needs_triton
def test_resources_are_what_the_compiler_reports(tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = str(tmp_path_factory.mktemp("triton"))
    with processes(1, TRITON_INTERPRET="0", TRITON_CACHE_DIR=cache) as pool:
        merged = pool.submit(resources_of, (("alexnet", 7, 2),), 90).result(100.0)
        fused = pool.submit(resources_of, (("alexnet", 7, 2), ("resnet18", 19, 3)), 90).result(100.0)
    assert (merged.warps, fused.warps) == (4, 8)
    assert 0 < merged.registers <= 255
    assert fused.shared_bytes >= 16 * (16 + 64) * 4, "a tile of rows and one of weights"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Two models of one layer, whose merging saves the paper's 25 % of two requests' loads, and 40 % of five."""
    monkeypatch.setattr(module, "layers_of", lambda model: layers_of(model)[:1])
    extent = Extent(("alexnet", "resnet18"), range(1, 6), (2,), ((1, 1),), (87,))
    counts = Counts(extent)
    for model, scale in (("alexnet", 1), ("resnet18", 3)):
        for number in extent.requests:
            separate = 100 * scale * number
            counts.loads[model, 0, number] = Loads(separate, separate, 50 * scale * (number + 1))
    counts.resources[module.pairs_of((1, 1))[0], 87] = KernelResources(registers=255, shared_bytes=0, warps=8)
    return counts


def test_windows_have_the_probabilities_of_random_requests(counted: Counts) -> None:
    rows = list(counted.window_rows())
    assert len(rows) == 6
    assert sum(row["probability"] for row in rows) == pytest.approx(1.0)
    row = next(row for row in rows if row["alexnet"] == 2)
    assert row["probability"] == 10 / 32
    assert (row["separate_loads"], row["merged_loads"]) == (200 + 900, 150 + 600)


def test_claims_compare_loads_with_the_papers(counted: Counts) -> None:
    extent = Extent(("alexnet", "resnet18"), range(1, 6), (2,), ((1, 1),), (87,))
    two, five, window, fused = bench.claims(counted, extent)
    assert (two.found.value, two.verdict) == (pytest.approx(25.0), Verdict.FAILS)
    assert (five.found.value, five.verdict) == (pytest.approx(40.0), Verdict.HOLDS)
    # Of 5 requests, a model has k: 50 (k + 1) loads are left of 100 k, and none if k is 0, whose probability is 1/32.
    assert window.found.value == pytest.approx(100 * (1 - (50 * 2.5 + 50 * 31 / 32) / 250))
    assert (fused.found.value, fused.goal, fused.verdict) == (0, 1, Verdict.FAILS)


def test_rows_say_what_was_counted_and_compiled(counted: Counts) -> None:
    (layer, *_), (model, *_) = list(counted.layer_rows()), list(counted.model_rows())
    assert (layer["layer"], layer["requests"], layer["saved_percent"]) == ("features.0", 1, 0.0)
    assert (model["what"], model["separate_loads"]) == ("model", 100)
    (pair,) = counted.pair_rows()
    assert (pair["layers"], pair["resident_sm87"], pair["registers_sm87"]) == (
        "alexnet features.0 + resnet18 conv1",
        False,
        255,
    )
