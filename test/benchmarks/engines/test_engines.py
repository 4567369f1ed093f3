"""The benchmark of engine auto: its command on made-up figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchvision")
from benchmark_commands import reported

from benchmarks.common.claim import Claim
from benchmarks.common.estimate import exact
from benchmarks.engines import __main__ as engines


@pytest.mark.parametrize(
    ("arguments", "models"),
    [((), engines.MODELS), (("--quick",), (engines.YOLO,)), (("--models", "shapes"), ("shapes",))],
    ids=str,
)
def test_the_command_measures_and_reports_the_chosen_models(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: Sequence[str], models: Sequence[str]
) -> None:
    def measure(names: Sequence[str], *, quick: bool, seconds: Callable[[], float]) -> tuple[list[Claim], list[Any]]:
        assert quick is ("--quick" in arguments)
        assert seconds() == 7.0
        rows = [{"what": name, "samples": {"auto": [0.01], "OpenVINO": [0.02]}} for name in names]
        return [Claim(name, exact(1.0), "x", 0.95) for name in names], rows

    monkeypatch.setattr(engines, "measure", measure)
    found = reported(engines.main, tmp_path, *arguments, "--seconds", "7")
    assert [row["what"] for row in found["rows"]] == [claim["name"] for claim in found["claims"]] == list(models)
