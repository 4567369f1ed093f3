"""Backbone and head take the precision that the user wants, as far as engine and processor have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rclpy.context import Context
from rclpy.parameter import Parameter

from split_infer_ros.engines import precision_checks
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.nodes.backbone import BackboneNode
from split_infer_ros.nodes.head import HeadNode
from split_infer_ros.nodes.managed import start_nodes

FP32, BF16 = Precision.FP32, Precision.BF16


@pytest.fixture
def extensions(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The extensions of the processor; none at first."""
    found: set[str] = set()
    monkeypatch.setattr(precision_checks, "onednn_limit", str)
    monkeypatch.setattr(precision_checks, "cpu_extensions", lambda: frozenset(found))
    return found


def precisions(context: Context, folder: Path, **values: Any) -> tuple[Precision, Precision]:
    """Returns those of backbone and head after both were started with these parameters.

    Raises:
        ConfigurationError: a node could not be configured.
    """
    found = []
    for kind, own in ((BackboneNode, {"device": "cpu"}), (HeadNode, {})):
        all_values = {"weights": "none", "engine": "torch", "tuning_database": str(folder / "t"), **own, **values}
        overrides = [Parameter(name, value=value) for name, value in all_values.items()]
        node = kind(context=context, use_global_arguments=False, parameter_overrides=overrides)
        try:
            start_nodes([node])
            found.append(node.model.precision if kind is BackboneNode else node.model.head_config.precision)
        finally:
            node.close()
    backbone, head = found
    return backbone, head


def test_fp32_is_the_default(context: Context, tmp_path: Path) -> None:
    assert precisions(context, tmp_path) == (FP32, FP32)


def test_a_precision_that_the_processor_has_is_taken(context: Context, tmp_path: Path, extensions: set[str]) -> None:
    extensions.add("avx512_bf16")
    for wanted in ("bf16", "bf16 or fp32"):
        assert precisions(context, tmp_path, precision=wanted) == (BF16, BF16)


def test_a_slow_precision_must_be_insisted_on_and_is_not_the_heads(
    context: Context, tmp_path: Path, extensions: set[str]
) -> None:
    assert precisions(context, tmp_path, precision="bf16") == (BF16, FP32)
    assert precisions(context, tmp_path, precision="bf16 or fp32") == (FP32, FP32)


def test_an_engine_without_the_precision_is_refused(context: Context, tmp_path: Path, extensions: set[str]) -> None:
    sentence = r"^shapes cannot run in bf16 on cpu: engine openvino computes in bf16 on processors with avx512_bf16 or"
    with pytest.raises(ConfigurationError, match=sentence):
        precisions(context, tmp_path, precision="bf16", engine="openvino")
