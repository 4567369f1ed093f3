"""What ``doctor`` says of precisions, on processors that are told to the checks."""

from __future__ import annotations

import pytest

from split_infer_ros.engines import precision_checks
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.precision_checkup import check_precisions
from split_infer_ros.telemetry.checkup import Level
from split_infer_ros.telemetry.machine import instruction_set


@pytest.fixture
def extensions(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Those of the processor; empty at first. All engines are installed."""
    found: set[str] = set()
    monkeypatch.setattr(Engine, "is_installed", True)
    monkeypatch.setattr(precision_checks, "onednn_limit", str)
    monkeypatch.setattr(precision_checks, "cpu_extensions", lambda: frozenset(found))
    monkeypatch.setattr(precision_checks, "cpu_name", lambda: "Processor X")
    return found


def found() -> dict[str, str]:
    findings = check_precisions()
    assert {finding.level for finding in findings} == {Level.OK}
    return {finding.what: finding.found for finding in findings}


def test_each_engine_has_a_line_with_its_precisions(extensions: set[str]) -> None:
    extensions.update(("avx512_bf16", "avx512_fp16"))
    assert found() == {
        "Instruction sets": instruction_set(),
        "Precisions of torch on the CPU": "fp32, fp16, bf16",
        "Precisions of onnxruntime on the CPU": "fp32",
        "Precisions of openvino on the CPU": "fp32, bf16, int8",
    }


def test_what_the_processor_lacks_is_said(extensions: set[str]) -> None:
    lines = found()
    slower = "(slower than fp32 on this processor)"
    assert lines["Precisions of torch on the CPU"] == f"fp32, fp16 {slower}, bf16 {slower}"
    assert lines["Precisions of openvino on the CPU"] == (
        "fp32, int8; bf16 is missing: engine openvino computes in bf16 on processors with avx512_bf16 or amx_bf16, and "
        "Processor X has neither."
    )


def test_an_engine_that_is_not_installed_has_no_line(extensions: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "is_installed", property(lambda engine: engine is Engine.TORCH))
    assert list(found()) == ["Instruction sets", "Precisions of torch on the CPU"]
