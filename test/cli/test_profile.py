from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


def test_the_table_is_printed_and_the_profile_stored(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "tuning.jsonl"
    arguments = ("shapes", "--batch", "1", "--device", "cpu", "--database", str(database))
    assert run("profile", *arguments) == 0
    first = capsys.readouterr()
    assert "shapes on cpu" in first.out
    assert "For balanced: split_point " in first.out
    assert "each stage alone" in first.err
    assert run("profile", *arguments, "--objective", "latency", "--latency-bound-ms", "0.001") == 0
    again = capsys.readouterr()
    assert again.err == ""
    assert "For latency: split_point " in again.out
    assert "no split point keeps within 0.001 ms" in again.out
    assert again.out.splitlines()[1] == first.out.splitlines()[1]


def test_errors_are_sentences(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("profile", "shades") == 1
    assert "Did you mean 'shapes'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("profile", "shapes", "--batch", "0")
    assert "--batch" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("profile", "shapes", "--objective", "speed")
    refusal = capsys.readouterr().err
    assert all(word in refusal for word in ("speed", "throughput", "latency"))
    assert run("nonsense") == 2
    assert "profile" in capsys.readouterr().err
