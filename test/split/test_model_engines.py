"""Which engines run a model in a precision, and what a user's choice comes to, on simulated processors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision import Precision, parse_precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.classifier import classify
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_engines import choose_precision, engines_for, untuned_engine
from split_infer_ros.split.onnx_network import OnnxNetwork
from split_infer_ros.split.onnx_to_torch import to_torch
from split_infer_ros.split.torch_network import TorchNetwork

FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8
SIDE = 12


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The engines that are installed; torch alone at first."""
    found = {"torch"}
    monkeypatch.setattr(Engine, "is_installed", property(lambda engine: engine.value in found))
    return found


def entry() -> ModelEntry:
    return ModelEntry(
        name="small",
        summary="",
        build=nn.Identity,
        weights=None,
        preprocess=Preprocess(SIDE, SIDE),
        labels=("a", "b"),
        default_split_point=None,
        decode=classify(SIDE, SIDE),
    )


@pytest.fixture
def of_torch() -> SplitModel:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    return SplitModel(TorchNetwork(entry(), net.eval()))


@pytest.fixture
def of_onnx() -> SplitModel:
    pytest.importorskip("onnxruntime")
    from small_graphs import small_graph

    return SplitModel(OnnxNetwork(entry(), small_graph()))


@pytest.fixture
def of_onnx_on_torch() -> SplitModel:
    """The same ONNX model as one of torch."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx2torch")
    from small_graphs import small_graph

    return SplitModel(TorchNetwork(*to_torch(entry(), small_graph())))


def test_onnx_file_on_torch_has_torchs_precisions(
    of_onnx_on_torch: SplitModel, of_onnx: SplitModel, installed: set[str], extensions: set[str]
) -> None:
    """torch converts the file's float32 values, which other engines take as they are unless they convert themselves."""
    installed.update(("onnxruntime", "openvino"))
    assert engines_for(of_onnx_on_torch) == ("torch", "onnxruntime", "openvino")
    assert engines_for(of_onnx_on_torch, FP16) == engines_for(of_onnx_on_torch, BF16) == ("torch",)
    assert choose_precision(of_onnx_on_torch, parse_precision("fp16"), "torch")[0] is FP16
    with pytest.raises(ConfigurationError, match=r"engine onnxruntime computes an ONNX file in fp32, not in fp16\."):
        choose_precision(of_onnx, parse_precision("fp16"), "auto")
    extensions.add("avx512_bf16")
    assert choose_precision(of_onnx_on_torch, parse_precision("bf16 or fp32"), "auto") == (BF16, "")
    assert engines_for(of_onnx_on_torch, BF16) == ("torch", "openvino")
    assert engines_for(of_onnx, BF16) == ("openvino",)


@pytest.mark.parametrize("engine", [Engine.TORCH, Engine.OPENVINO])
@pytest.mark.parametrize("kind", ["of_torch", "of_onnx"])
def test_model_that_was_not_quantised_never_gets_an_int8_config(
    kind: str, engine: Engine, request: pytest.FixtureRequest
) -> None:
    """Engines would run its float32 weights as they are."""
    model: SplitModel = request.getfixturevalue(kind)
    config = ExecutionConfig(engine=engine, precision=INT8)
    with pytest.raises(ConfigurationError, match=r"^small is an? .* and not quantised, so it cannot run in int8 as it"):
        model.placed(torch.device("cpu"), config)
    with pytest.raises(ConfigurationError, match="not quantised"):
        SplitModel(model.network, model.device, config)
    assert model.precision is FP32


def test_engines_without_a_precision_are_left_out(
    of_torch: SplitModel, of_onnx: SplitModel, installed: set[str], extensions: set[str]
) -> None:
    installed.update(("onnxruntime", "openvino"))
    extensions.add("avx512_bf16")
    assert engines_for(of_torch) == ("torch", "onnxruntime", "openvino")
    assert engines_for(of_torch, BF16) == ("torch", "openvino")
    assert engines_for(of_torch, FP16) == ("torch",)
    assert engines_for(of_onnx) == ("onnxruntime", "openvino")
    assert (engines_for(of_onnx, BF16), engines_for(of_onnx, FP16)) == (("openvino",), ())
    assert [untuned_engine(model, BF16) for model in (of_torch, of_onnx)] == ["torch", "openvino"]
    extensions.clear()
    assert (engines_for(of_torch, BF16), engines_for(of_onnx, BF16)) == (("torch",), ())


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_torch_runs_slow_precisions_only_if_they_are_insisted_on(
    of_torch: SplitModel, installed: set[str], extensions: set[str], engine: str
) -> None:
    precision, reason = choose_precision(of_torch, parse_precision("bf16"), engine)
    assert precision is BF16
    assert reason == ("small runs in bf16: the processor has no instructions for bf16, so it is slower than fp32.")
    precision, reason = choose_precision(of_torch, parse_precision("bf16 or fp32"), engine)
    assert precision is FP32
    assert reason.startswith("small runs in fp32: the processor has no instructions for bf16")
    extensions.add("amx_bf16")
    for text in ("bf16", "bf16 or fp32"):
        assert choose_precision(of_torch, parse_precision(text), engine) == (BF16, "")


def test_what_is_impossible_is_refused_or_runs_in_fp32(
    of_torch: SplitModel, installed: set[str], extensions: set[str]
) -> None:
    installed.update(("onnxruntime", "openvino"))
    missing = {
        "openvino": "engine openvino computes in bf16 on processors with avx512_bf16 or amx_bf16, and "
        "Processor X has neither.",
        "onnxruntime": "engine onnxruntime computes a network in fp32, not in bf16.",
    }
    for engine, reason in missing.items():
        with pytest.raises(ConfigurationError) as refused:
            choose_precision(of_torch, parse_precision("bf16"), engine)
        assert str(refused.value) == (
            f"small cannot run in bf16 on cpu: {reason} Take precision fp32 or 'bf16 or fp32'."
        )
        found = choose_precision(of_torch, parse_precision("bf16 or fp32"), engine)
        assert found == (FP32, f"small runs in fp32: {reason}")


def test_auto_says_what_each_engine_lacks(of_onnx: SplitModel, installed: set[str], extensions: set[str]) -> None:
    installed.add("onnxruntime")
    extensions.add("avx512_bf16")
    with pytest.raises(ConfigurationError) as refused:
        choose_precision(of_onnx, parse_precision("bf16"), "auto")
    assert "engine onnxruntime computes an ONNX file in fp32, not in bf16. engine openvino is not installed." in str(
        refused.value
    )
    installed.add("openvino")
    assert choose_precision(of_onnx, parse_precision("bf16"), "auto") == (BF16, "")


def test_fp32_needs_no_words(of_torch: SplitModel, installed: set[str], extensions: set[str]) -> None:
    assert choose_precision(of_torch, parse_precision("fp32"), "auto") == (FP32, "")
