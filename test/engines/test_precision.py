"""Precisions as users write them."""

from __future__ import annotations

import pytest

from split_infer_ros.engines.precision import AUTO, AUTO_INT8, FASTER, PRECISION_CHOICES, Precision, parse_precision
from split_infer_ros.errors import ConfigurationError


def test_users_name_a_precision_and_may_allow_fp32() -> None:
    assert parse_precision("fp32") == (Precision.FP32,)
    assert parse_precision("bf16") == (Precision.BF16,)
    assert parse_precision("bf16 or fp32") == (Precision.BF16, Precision.FP32)
    assert {parse_precision(text)[0] for text in PRECISION_CHOICES} == set(Precision)


def test_auto_starts_in_fp32_and_only_auto_int8_allows_int8() -> None:
    assert parse_precision(AUTO) == parse_precision(AUTO_INT8) == (Precision.FP32,)
    assert {*FASTER[AUTO_INT8]} - {*FASTER[AUTO]} == {Precision.INT8}


def test_int8_may_agree_a_little_less() -> None:
    assert [each.min_agreement for each in Precision] == [0.99, 0.99, 0.99, 0.97]


@pytest.mark.parametrize("text", ["", "fp8", "BF16", "fp32 or fp32", "fp32 or bf16", "bf16 or fp16"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"^precision '{text}' is unknown; it takes one of: auto, auto_int8, "
    ):
        parse_precision(text)


def test_tensors_of_int8_are_float32_outside_its_engine() -> None:
    assert [each.dtype.name for each in Precision] == ["float32", "float16", "bfloat16", "float32"]
