"""Text with surrogates becomes text that UTF-8 can carry."""

from __future__ import annotations

import pytest

from split_infer_ros.runtime.text import encode_text, repair_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("car", "car"),
        ("\U0001f697 é", "\U0001f697 é"),
        ("\ud83d\ude97", "\U0001f697"),
        ("a \ud83d\ude97\ud83d\ude95 b", "a \U0001f697\U0001f695 b"),
        ("\ud83d", "\ufffd"),
        ("\ude97", "\ufffd"),  # noqa: PT014
        ("\ud83dcar\ude97", "\ufffdcar\ufffd"),
        ("\ude97\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ud83d\ude97", "\ufffd\U0001f697"),
        ("caf\udce9", "caf\ufffd"),
    ],
)
def test_pairs_are_joined_and_halves_replaced(text: str, expected: str) -> None:
    assert repair_text(text) == expected
    assert encode_text(text) == expected.encode()
