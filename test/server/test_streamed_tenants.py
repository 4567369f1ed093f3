"""Tenants whose models' weights go through one ring."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from networks import graph_of
from tenant_server import until

from split_infer_ros.autotuning.opening import tenant_opener
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ConfigurationError, StreamError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.measurements.database import Database
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.server import Server
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.shared_weights import make_ring_memory
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.torch_graphs.module_state import state_of
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.weights_file import WeightsFile

TENANTS = Tenant("a", "shapes"), Tenant("b", "shapes", "random")
SETTINGS = SharedSettings(device="cpu", batch_size=1)
PICTURES = [np.random.default_rng(i).integers(0, 255, (48, 64, 3), np.uint8) for i in range(3)]


SHARED = (Residency.ASYNCHRONOUS, Residency.TWO_STAGE, Residency.SYNCHRONOUS)


def streamed_through(ring_bytes: float, residency: Residency = Residency.ASYNCHRONOUS) -> SharedSettings:
    return replace(SETTINGS, weights_residency=residency, weights_budget_bytes=ring_bytes)


class Run:
    """A pipeline of the two, and the scores that each got."""

    def __init__(self, folder: Path, settings: SharedSettings) -> None:
        self.found: dict[str, list[npt.NDArray[np.float32]]] = {"a": [], "b": []}
        self.errors: list[Exception] = []
        database = Database(folder / "t")
        self.pipeline = Server(
            *(settings, Limits(0.0), self._deliver, lambda _, error: self.errors.append(error)),
            device=torch.device("cpu"),
            open_model=tenant_opener(database),
            database=database,
        )
        self.refused = self.pipeline.set_tenants(TENANTS)
        self.pipeline.start()

    def _deliver(self, tenant: str, origin: Origin, detections: Detections, labels: Sequence[str]) -> None:
        self.found[tenant].append(detections.scores)

    def feed(self) -> None:
        for picture in PICTURES:
            for name in self.found:
                self.pipeline.intake(name).submit(
                    Pixels(picture, (0, 1, 2)), Origin(None, name, 48, 64), time.monotonic()
                )
            until(lambda: not any(self.counts(name).in_flight for name in self.found))

    def counts(self, name: str):  # type: ignore[no-untyped-def]
        return self.pipeline.view.report(name, time.monotonic()).counts

    def close(self) -> None:
        self.pipeline.stop(10.0)
        self.pipeline.close()


@pytest.mark.parametrize("residency", SHARED)
def test_models_share_a_ring_and_each_tenant_gets_its_own_results(
    residency: Residency, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    resident = Run(tmp_path, SETTINGS)
    resident.feed()
    resident.close()
    streamed = Run(tmp_path, streamed_through(2.2e6, residency))
    assert streamed.refused == {}
    streamed.feed()
    for name, expected in resident.found.items():
        assert len(expected) == len(PICTURES)
        # no layer is tiled, so each runs the same kernels as with weights in memory
        assert all(np.array_equal(a, b) for a, b in zip(streamed.found[name], expected, strict=True))
        report = streamed.pipeline.view.report(name, 0.0)
        assert report.weights is not None
        assert report.weights.memory_bytes < 2.3e6
        assert report.failure == ""
    assert not np.array_equal(resident.found["a"][0], resident.found["b"][0])
    for line in streamed.pipeline.view.models.values():
        state = state_of(graph_of(line.instance.model))
        held = sum(tensor.untyped_storage().nbytes() for tensor in state.values())
        assert held < 0.2 * sum(tensor.nbytes for tensor in state.values()), "weights were not given back"

    def fail(self: WeightsFile, offset: int, into: memoryview, layer: str) -> None:
        raise StreamError(DropReason.WEIGHTS_UNREADABLE, f"Layer '{layer}' cannot be read.")

    until(lambda: streamed.pipeline.view.is_measured)  # a model whose costs cannot be measured would serve no more
    monkeypatch.setattr(WeightsFile, "read", fail)
    streamed.feed()
    assert [set(streamed.counts(name).dropped) for name in "ab"] == [{"weights_unreadable"}] * 2
    assert all(streamed.pipeline.view.report(name, 0.0).failure.startswith("Layer ") for name in "ab")
    assert all(isinstance(error, StreamError) for error in streamed.errors)
    streamed.close()


@pytest.mark.parametrize("residency", SHARED)
def test_a_ring_too_small_for_a_model_is_refused_with_the_number(
    residency: Residency, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = Run(tmp_path, streamed_through(50_000.0, residency))
    assert set(run.refused) == {"a", "b"}
    assert all("needs a weights_budget_mb of" in str(error) for error in run.refused.values())
    run.close()


def test_a_gpu_is_refused() -> None:
    settings = streamed_through(1e6)
    with pytest.raises(ConfigurationError, match="weights_residency asynchronous is for tenants on the CPU"):
        make_ring_memory(settings, torch.device("cuda:0"))


@pytest.mark.parametrize(
    ("residency", "ring_bytes", "reason"),
    [
        (Residency.AUTO, 1e6, "auto chooses the memory of one model, and tenants share a ring"),
        (Residency.TWO_STAGE, math.inf, "two_stage needs a weights_budget_mb above 0"),
    ],
)
def test_what_a_shared_ring_cannot_do_is_refused(residency: Residency, ring_bytes: float, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        make_ring_memory(streamed_through(ring_bytes, residency), torch.device("cpu"))
