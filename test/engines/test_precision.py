"""Precisions as users write them."""

from __future__ import annotations

import pytest

from split_infer_ros.engines.precision import PRECISION_CHOICES, Precision, parse_precision
from split_infer_ros.errors import ConfigurationError


def test_users_name_a_precision_and_may_allow_fp32() -> None:
    assert parse_precision("fp32") == (Precision.FP32,)
    assert parse_precision("bf16") == (Precision.BF16,)
    assert parse_precision("bf16 or fp32") == (Precision.BF16, Precision.FP32)
    assert {parse_precision(text)[0] for text in PRECISION_CHOICES} == set(Precision)


@pytest.mark.parametrize("text", ["", "fp8", "BF16", "fp32 or fp32", "fp32 or bf16", "bf16 or fp16"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^precision '{text}' is unknown; it takes one of: fp32, fp16, "):
        parse_precision(text)


def test_tensors_of_int8_are_float32_outside_its_engine() -> None:
    assert [each.dtype.name for each in Precision] == ["float32", "float16", "bfloat16", "float32"]
