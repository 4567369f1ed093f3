"""Models of torch whose partitions run on other engines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from comparisons import rounding
from torch import Tensor
from two_branch_net import CPU, SIDE, two_roads

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.engines.executable import make_executable
from split_infer_ros.engines.execution_config import Convolutions, ExecutionConfig
from split_infer_ros.engines.onnxruntime_part import OnnxRuntimePart
from split_infer_ros.engines.openvino_part import OpenVinoPart
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError

pytestmark = pytest.mark.numeric

for package in ("onnx", "onnxscript"):
    pytest.importorskip(package)

ONNXRUNTIME, OPENVINO = ExecutionConfig(engine=Engine.ONNXRUNTIME), ExecutionConfig(engine=Engine.OPENVINO)
ROUNDING = 1e-5  # sums of at most 144 products in any order, a few layers deep


def images(count: int) -> Tensor:
    return torch.randn((count, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(count))


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cache folder, which these tests share: each part is exported once."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(path))
        yield path


@pytest.mark.parametrize(("config", "kind"), [(ONNXRUNTIME, OnnxRuntimePart), (OPENVINO, OpenVinoPart)])
def test_every_split_point_gives_torchs_results(config: ExecutionConfig, kind: type[EnginePart]) -> None:
    pytest.importorskip(config.engine.value)
    split, whole = two_roads(config), two_roads(ExecutionConfig()).head("input")
    names = [split_point.name for split_point in split.split_points]
    assert {len(split_point.tensors) for split_point in split.split_points} == {1, 2}
    with torch.inference_mode():
        for name in names:
            backbone, head = split.backbone(name), split.head(name)
            assert isinstance(backbone, kind) == (name != "input")
            assert isinstance(head, kind) == (name != "output")
            for size in (1, 3):
                (expected,) = whole(images(size))
                (found,) = head(*backbone(images(size)))
                assert expected.std() > 0.01
                assert rounding(found, expected) <= ROUNDING


def test_segments_run_on_the_engine() -> None:
    pytest.importorskip("openvino")
    split = two_roads(OPENVINO)
    values: tuple[Tensor, ...] = (images(2),)
    (expected,) = two_roads(ExecutionConfig()).head("input")(*values)
    for segments in split.segments():
        assert all(isinstance(segment, OpenVinoPart) for segment in segments)
        values = (images(2),)
        for segment in segments:
            values = segment(*values)
        assert rounding(values[0], expected) <= ROUNDING


def test_a_head_on_another_engine_takes_the_backbones_features() -> None:
    for package in ("onnxruntime", "openvino"):
        pytest.importorskip(package)
    mixed = ExecutionConfig(), ONNXRUNTIME, OPENVINO
    (expected,) = two_roads(ExecutionConfig()).head("input")(images(2))
    for before in mixed:
        for behind in mixed:
            (found,) = two_roads(behind).head("left")(*two_roads(before).backbone("left")(images(2)))
            assert rounding(found, expected) <= ROUNDING


def test_a_missing_exporter_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ConfigurationError) as refusal:
        two_roads(ONNXRUNTIME).backbone("left")
    assert str(refusal.value) == (
        "engine onnxruntime needs the Python package onnxscript, which is not installed: "
        "pip install onnx onnxscript onnxruntime, or take engine torch."
    )


def test_a_missing_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ConfigurationError, match=r"^engine openvino needs the Python package openvino, which is not"):
        two_roads(OPENVINO).backbone("left")


def test_a_precision_that_an_engine_lacks_is_refused() -> None:
    for config, sentence in (
        (OPENVINO, r"^engine openvino computes a network in fp32 or bf16 or int8, not in fp16\.$"),
        (ONNXRUNTIME, r"^engine onnxruntime computes a network in fp32, not in fp16\.$"),
    ):
        half = two_roads(ExecutionConfig()).placed(CPU, replace(config, precision=Precision.FP16))
        with pytest.raises(ConfigurationError, match=sentence):
            half.backbone("left")


def test_an_onnx_graph_is_run_by_engines_of_onnx_alone() -> None:
    pytest.importorskip("onnxruntime")
    from small_graphs import images, in_torch, small_graph

    with pytest.raises(
        ConfigurationError, match=r"^small is an ONNX model, which engine torch does not run: take engi"
    ):
        make_executable(small_graph(), ExecutionConfig())
    found, _ = make_executable(small_graph(), ONNXRUNTIME)(images(2))
    expected, _ = in_torch(images(2))
    assert rounding(found, expected) <= ROUNDING


def test_auto_takes_what_is_known_and_can_run_the_model() -> None:
    plain, tuned, other = ExecutionConfig(), ExecutionConfig(Convolutions.BLOCKED), OPENVINO
    assert tuned.with_engine("auto", "torch") is tuned
    assert other.with_engine("auto", "torch") is other
    assert plain.with_engine("auto", "onnxruntime") == ONNXRUNTIME
    assert other.with_engine("auto", "onnxruntime") is other
    low = ExecutionConfig(precision=Precision.BF16)
    assert low.with_engine("auto", "openvino") == replace(OPENVINO, precision=Precision.BF16)


def test_a_wanted_engine_keeps_what_was_tuned_for_it_alone() -> None:
    tuned = ExecutionConfig(Convolutions.BLOCKED)
    assert tuned.with_engine("torch", "torch") is tuned
    assert tuned.with_engine("openvino", "torch") == OPENVINO
    assert OPENVINO.with_engine("torch", "torch") == ExecutionConfig()
    with pytest.raises(ConfigurationError, match=r"^engine torch runs an ONNX model only if its ModelSpec says"):
        OPENVINO.with_engine("torch", "onnxruntime")
    cuda = ExecutionConfig(engine=Engine.ONNXRUNTIME, provider="CUDA")
    assert ONNXRUNTIME.with_engine("onnxruntime:CUDA", "torch") == cuda
    assert cuda.with_engine("onnxruntime:cuda", "torch") is cuda
