from __future__ import annotations

import sys
from pathlib import Path

import pytest

from split_infer_ros import __main__


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["split_infer_ros", "profile", *arguments])
    return __main__.main()


def test_the_table_and_the_choice_are_printed_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "tuning.jsonl"
    arguments = ("shapes", "--batch", "1", "--device", "cpu", "--database", str(database))
    assert run(monkeypatch, *arguments) == 0
    first = capsys.readouterr()
    assert "shapes on cpu" in first.out
    assert "For throughput: split_point " in first.out
    assert "each stage alone" in first.err
    assert run(monkeypatch, *arguments, "--objective", "latency", "--latency-bound-ms", "0.001") == 0
    again = capsys.readouterr()
    assert again.err == ""
    assert "For latency: split_point " in again.out
    assert "no cut keeps within 0.001 ms" in again.out
    assert again.out.splitlines()[1] == first.out.splitlines()[1]


def test_what_it_cannot_do_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "shades") == 1
    assert "Did you mean 'shapes'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(monkeypatch, "shapes", "--batch", "0")
    assert "--batch" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["split_infer_ros", "nonsense"])
    assert __main__.main() == 2
    assert "profile" in capsys.readouterr().err
