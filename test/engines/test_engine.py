"""The names of engines, and what users are told about them."""

from __future__ import annotations

import sys

import pytest
import torch

from split_infer_ros.engines.engine import (
    Engine,
    check_device,
    check_engine,
    engine_text,
    find_provider,
    import_for,
    parse_engine,
)
from split_infer_ros.errors import ConfigurationError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("text", "engine", "provider"),
    [
        ("torch", Engine.TORCH, ""),
        ("onnxruntime", Engine.ONNXRUNTIME, ""),
        ("openvino", Engine.OPENVINO, ""),
        ("onnxruntime:CUDA", Engine.ONNXRUNTIME, "CUDA"),
        ("openvino:GPU.1", Engine.OPENVINO, "GPU.1"),
    ],
)
def test_names_are_read_and_written(text: str, engine: Engine, provider: str) -> None:
    assert parse_engine(text) == (engine, provider)
    assert engine_text(engine, provider) == text
    check_engine(text)


@pytest.mark.parametrize("text", ["", "Torch", "tensorrt", "auto:CUDA", "cuda:onnxruntime"])
def test_an_unknown_engine_is_refused_with_the_list(text: str) -> None:
    sentence = (
        f"engine cannot be '{text}'; it takes one of: auto, torch, onnxruntime, openvino, onnxruntime:PROVIDER, "
        "openvino:DEVICE."
    )
    with pytest.raises(ConfigurationError) as refusal:
        check_engine(text)
    assert str(refusal.value) == sentence


@pytest.mark.parametrize("text", ["torch:CUDA", "onnxruntime:", "openvino:"])
def test_torch_has_no_providers(text: str) -> None:
    sentence = rf"^engine cannot be '{text}'; only onnxruntime has providers and only openvino has devices, for example"
    with pytest.raises(ConfigurationError, match=sentence):
        parse_engine(text)


@pytest.mark.parametrize("text", ["openvino:CPU", "openvino:cpu", "onnxruntime:CPU"])
def test_the_cpu_is_what_a_bare_name_means(text: str) -> None:
    engine, provider = parse_engine(text)
    assert (engine.value, provider) == (text.partition(":")[0], "")


def test_devices_of_openvino_are_read_in_any_case() -> None:
    assert parse_engine("openvino:gpu.1") == (Engine.OPENVINO, "GPU.1")


def test_auto_is_a_choice_and_no_engine() -> None:
    check_engine("auto")
    with pytest.raises(ConfigurationError):
        parse_engine("auto")


@pytest.mark.parametrize("engine", [Engine.ONNXRUNTIME, Engine.OPENVINO])
def test_a_missing_package_is_named(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, engine.value, None)  # as if it were not installed
    assert not engine.is_installed
    with pytest.raises(ConfigurationError) as refusal:
        import_for(engine, engine.value)
    assert str(refusal.value) == (
        f"engine {engine.value} needs the Python package {engine.value}, which is not installed: "
        f"pip install onnx onnxscript {engine.value}, or take engine torch."
    )


def test_torch_is_installed() -> None:
    assert Engine.TORCH.is_installed


def test_providers_are_found_in_any_case() -> None:
    pytest.importorskip("onnxruntime")
    assert find_provider(Engine.ONNXRUNTIME, "") == find_provider(Engine.ONNXRUNTIME, "cpu") == "CPUExecutionProvider"
    with pytest.raises(
        ConfigurationError, match=r"^engine onnxruntime:Abacus is not possible here: .* has the providers .*CPU"
    ):
        find_provider(Engine.ONNXRUNTIME, "Abacus")


def test_engines_are_refused_on_devices_where_they_do_not_run() -> None:
    for device in (CPU, GPU):
        check_device(Engine.TORCH, "", device)
    for provider in ("CUDA", "cuda", "TensorRT"):
        check_device(Engine.ONNXRUNTIME, provider, GPU)
        with pytest.raises(ConfigurationError, match=rf"^engine onnxruntime:{provider} needs a GPU, and the device is"):
            check_device(Engine.ONNXRUNTIME, provider, CPU)
    check_device(Engine.OPENVINO, "GPU", CPU)  # OpenVINO's devices read and write the CPU's memory
    for engine in (Engine.ONNXRUNTIME, Engine.OPENVINO):
        check_device(engine, "", CPU)
        with pytest.raises(ConfigurationError, match=rf"^engine {engine.value} does not run on device cuda:1: take"):
            check_device(engine, "", GPU)


def test_engines_read_images_in_their_own_layout() -> None:
    assert [engine for engine in Engine if engine.reads_channels_last] == [Engine.TORCH]
