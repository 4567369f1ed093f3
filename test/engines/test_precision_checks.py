"""Which precisions engines have, on processors that are told to the checks."""

from __future__ import annotations

import pytest
import torch

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.precision import Precision, parse_precision
from split_infer_ros.engines.precision_checks import check_precision, is_made_for, precisions_of, wants_torch
from split_infer_ros.errors import ConfigurationError

pytestmark = pytest.mark.numeric

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_openvino_needs_a_processor_for_bf16(extensions: set[str]) -> None:
    sentence = (
        r"^engine openvino computes in bf16 on processors with avx512_bf16 or amx_bf16, and Processor X has neither\.$"
    )
    extensions.update(("avx512f", "avx512_vnni"))
    with pytest.raises(ConfigurationError, match=sentence):
        check_precision(Precision.BF16, Engine.OPENVINO, "")
    for extension in ("avx512_bf16", "amx_bf16"):
        extensions.add(extension)
        check_precision(Precision.BF16, Engine.OPENVINO, "")
        extensions.remove(extension)


def test_torch_computes_in_16_bits_anywhere(extensions: set[str]) -> None:
    for precision in (Precision.FP32, Precision.FP16, Precision.BF16):
        check_precision(precision, Engine.TORCH, "")
    assert [is_made_for(each, CPU) for each in (Precision.FP32, Precision.FP16, Precision.BF16)] == [True, False, False]
    assert is_made_for(Precision.INT8, CPU), "it is faster on any processor"
    assert all(is_made_for(each, GPU) for each in Precision)
    extensions.add("avx512_bf16")
    assert is_made_for(Precision.BF16, CPU)
    assert not is_made_for(Precision.FP16, CPU)


def test_onnx_runtime_has_16_bits_on_a_gpu_alone() -> None:
    every = (Precision.FP32, Precision.FP16, Precision.BF16)
    assert precisions_of(Engine.ONNXRUNTIME, "") == (Precision.FP32,)
    assert precisions_of(Engine.ONNXRUNTIME, "cuda") == precisions_of(Engine.ONNXRUNTIME, "TensorRT") == every
    with pytest.raises(ConfigurationError, match=r"^engine onnxruntime computes a network in fp32, not in bf16\.$"):
        check_precision(Precision.BF16, Engine.ONNXRUNTIME, "")


def test_tensorrt_alone_converts_what_a_file_holds() -> None:
    check_precision(Precision.BF16, Engine.ONNXRUNTIME, "TensorRT", is_file=True)
    sentence = r"^engine onnxruntime:CUDA computes an ONNX file in fp32, not in fp16\.$"
    with pytest.raises(ConfigurationError, match=sentence):
        check_precision(Precision.FP16, Engine.ONNXRUNTIME, "CUDA", is_file=True)


@pytest.mark.parametrize(
    ("engine", "precision", "wanted"),
    [
        ("auto", "fp32", None),
        ("torch", "fp32", True),
        ("onnxruntime", "fp32", False),
        ("onnxruntime", "bf16 or fp32", False),
        ("onnxruntime:CUDA", "fp16", None),
        ("openvino", "bf16", False),
        ("openvino:GPU", "fp16", False),
        ("openvino", "int8 or fp32", None),
    ],
)
def test_an_engine_wants_torch_or_a_file(engine: str, precision: str, wanted: bool | None) -> None:
    assert wants_torch(engine, parse_precision(precision)) is wanted
