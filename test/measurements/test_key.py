"""The versions of engines belong to the records of these engines alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

import pytest

from split_infer_ros.measurements.key import MEANINGS, Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.telemetry import machine
from split_infer_ros.telemetry.machine import engine_version

KEY = Key({"device": "cpu"}, {"torch": "2.15", "cuda": None})
NETWORK: dict[str, Any] = {"model": "m", "stage": "network"}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The versions of what counts as installed."""
    versions = {"onnxruntime-gpu": "1.32.0", "openvino": "2026.4.1"}

    def version(distribution: str) -> str:
        if distribution not in versions:
            raise metadata.PackageNotFoundError(distribution)
        return versions[distribution]

    monkeypatch.setattr(machine.metadata, "version", version)
    engine_version.cache_clear()
    yield versions
    engine_version.cache_clear()


def fitting(records: Sequence[Record]) -> list[bool]:
    """Returns which of the records a new process would use."""
    engine_version.cache_clear()
    return [KEY.fits(record) for record in records]


def test_records_of_torch_have_torchs_versions_alone(installed: dict[str, str]) -> None:
    versions = KEY.versions_for(NETWORK, {"convolutions": "packed", "threads": 2})
    assert versions == KEY.versions_for(NETWORK) == {"meaning": MEANINGS["network"], "torch": "2.15", "cuda": None}
    assert KEY.versions_for(NETWORK, {"engine": "torch"}) == versions


@pytest.mark.parametrize(
    ("task", "config", "engines"),
    [
        (NETWORK, {"engine": "openvino"}, {"openvino": "2026.4"}),
        (NETWORK, {"engine": "onnxruntime:CUDA"}, {"onnxruntime": "1.32"}),
        ({"stage": "pipeline", "network": {"engine": "openvino"}}, {"batch_size": 1}, {"openvino": "2026.4"}),
        (
            {"stage": "split_points", "form": {"engine": "openvino"}},
            {"head_engine": "onnxruntime"},
            {"onnxruntime": "1.32", "openvino": "2026.4"},
        ),
    ],
)
def test_records_of_engines_have_their_versions(
    task: dict[str, Any], config: dict[str, Any], engines: dict[str, str], installed: dict[str, str]
) -> None:
    assert KEY.versions_for(task, config) == KEY.versions_for(task) | engines


def test_a_new_version_of_an_engine_invalidates_its_records_alone(installed: dict[str, str]) -> None:
    of_torch = KEY.record(NETWORK, {"threads": 2}, (1.0,), time=0.0)
    of_openvino = KEY.record(NETWORK, {"threads": 2, "engine": "openvino"}, (1.0,), time=0.0)
    of_onnxruntime = KEY.record(NETWORK, {"threads": 2, "engine": "onnxruntime"}, (1.0,), time=0.0)
    everything = (of_torch, of_openvino, of_onnxruntime)
    assert all(fitting(everything))
    installed["openvino"] = "2026.4.9"  # a patch
    assert all(fitting(everything))
    installed["openvino"] = "2027.0.0"
    assert fitting(everything) == [True, False, True]
    del installed["onnxruntime-gpu"]
    assert fitting(everything) == [True, False, False]
    installed["onnxruntime"] = "1.32.1"
    assert fitting(everything) == [True, False, True]


def test_a_version_is_looked_up_once_in_a_process(installed: dict[str, str]) -> None:
    record = KEY.record(NETWORK, {"engine": "openvino"}, (1.0,), time=0.0)
    del installed["openvino"]
    assert KEY.fits(record)
    assert fitting([record]) == [False]


def test_an_engine_that_is_not_installed_has_no_version() -> None:
    assert engine_version("no_such_engine") is None
