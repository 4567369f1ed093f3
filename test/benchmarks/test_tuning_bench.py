from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import tuning as bench
from _vendor_networks import VENDORS, vendors_of

from split_infer_ros.split.load import build_model
from split_infer_ros.tuning.space import Space, frozen


def model_row(name: str, built: float, tuned: float, **vendors: float) -> dict[str, Any]:
    times = {f"{vendor}_ms": value for vendor, value in zip(VENDORS, vendors.values(), strict=False)}
    facts = {"what": "model", "model": name, "difference": 1e-6, "read_ms": 2.0}
    return {**facts, "as built_ms": built, "tuned_ms": tuned, **times}


def test_what_is_claimed() -> None:
    rows = [
        model_row("mobilenet_v2", 30.0, 10.0, ort=8.0, openvino=12.0),
        model_row("resnet50", 12.0, 10.0),
        {"what": "search", "search": "guided", "trials_median": 6.0},
        {"what": "search", "search": "random", "trials_median": 10.0},
    ]
    claims = {claim.name: claim for claim in bench.conclude(rows)}
    assert claims["mobilenet_v2, tuned, times as built"].value == 3.0
    assert not claims["resnet50, tuned, times as built"].holds
    assert claims["mobilenet_v2, tuned, times the best vendor's library"].value == 0.8
    assert math.isnan(claims["resnet50, tuned, times the best vendor's library"].value)
    assert claims["guided, of random's trials until within 5 %"].value == 0.6
    assert claims["results differ by, most"].holds


def test_searches_are_replayed_from_what_was_recorded() -> None:
    space = Space({"a": (1, 2, 3), "b": ("x", "y", "z")})
    costs = {frozen(config): 1.0 + (config["a"] != 3) + (config["b"] != "z") for config in space}
    rows = bench.compare_searches(bench.Recorded(space, costs, dict.fromkeys(costs, 2.0)))
    samples = {row["search"]: row["trials"] for row in rows}
    assert [row["search"] for row in rows] == ["guided", "random", "exhaustive"]
    assert samples["exhaustive"] == [9]
    assert rows[2]["best_so_far_ms"] == [3000.0, 3000.0, *[2000.0] * 6, 1000.0]
    assert rows[2]["seconds_so_far"] == pytest.approx([2.0 * (turn + 1) for turn in range(9)], rel=0.5)
    pairs = [pair for row in rows for pair in zip(row["seconds"], row["trials"], strict=True)]
    assert all(seconds > 2 * trials for seconds, trials in pairs)
    titles = [panel.title for panel in bench.panels_of(rows)]
    assert titles == ["trials until within 5 %", "best so far, until within 5 %"]
    assert len(samples["guided"]) == len(samples["random"]) == bench.REPLAYS
    assert all(1 <= count <= 9 for count in samples["guided"])


def test_a_run_adds_to_what_was_measured_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def contest(name: str, device: object, database: object, extent: object) -> dict[str, Any]:
        return model_row(name, 20.0, 10.0) | {"samples": {"tuned": [10.0]}}

    monkeypatch.setattr(bench, "contest", contest)
    before = [model_row(name, 1.0, 1.0) | {"samples": {"tuned": [1.0]}} for name in ("resnet50", "mobilenet_v2")]
    before.append({"what": "search", "search": "guided", "trials": [6.0], "trials_median": 6.0})
    before.append({"what": "search", "search": "random", "trials": [12.0], "trials_median": 12.0})
    report = bench.run(replace(bench.QUICK, models=("mobilenet_v2",)), torch.device("cpu"), False, before)
    assert [bench._subject(row) for row in report.rows] == ["resnet50", "guided", "random", "mobilenet_v2"]
    assert report.rows[-1]["tuned_ms"] == 10.0
    assert [panel.title for panel in report.panels] == ["resnet50", "mobilenet_v2", "trials until within 5 %"]
    claims = {claim.name: claim for claim in report.claims}
    assert claims["guided, of random's trials until within 5 %"].value == 0.5


def test_on_a_gpu_the_vendor_is_cudnn_which_says_what_the_network_says(monkeypatch: pytest.MonkeyPatch) -> None:
    _, module = build_model("shapes", "none")
    images = torch.randn(1, 3, 64, 64)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    found = vendors_of(module, images, 1)
    assert list(found) == ["cuDNN"]
    with torch.inference_mode():
        torch.testing.assert_close(found["cuDNN"](), module(images), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_vendors_say_what_the_network_says() -> None:
    _, module = build_model("squeezenet1_0", "none")
    images = torch.randn(1, 3, 64, 64)
    found = vendors_of(module, images, 1)
    with torch.inference_mode():
        expected = module(images)
    for run in found.values():
        (answer,) = list(run().values()) if hasattr(run(), "values") else run()
        torch.testing.assert_close(torch.as_tensor(answer), expected, atol=1e-4, rtol=1e-4)
