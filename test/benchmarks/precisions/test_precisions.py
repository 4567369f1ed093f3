"""What decides how int8 is made: no image on which it is judged."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.precisions import __main__ as precisions
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.quantisation.samples import Samples

FILES = [Path(f"{number:02}.png") for number in range(9)]


def test_images_that_choose_layers_do_not_calibrate(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Samples] = []

    def quantise(source: object, calibration: Samples, test: Samples, **_: object) -> list[SimpleNamespace]:
        seen.extend((calibration, test))
        quality = SimpleNamespace(loss="", agreement=1.0)
        return [SimpleNamespace(scope=SimpleNamespace(value="all"), quality=quality, proto=None)]

    monkeypatch.setattr(precisions, "check_packages", lambda: None)
    monkeypatch.setattr(precisions, "quantise", quantise)
    monkeypatch.setattr(precisions, "OnnxGraph", lambda name, proto: proto)
    monkeypatch.setattr(precisions, "QuantisedNetwork", lambda network, graph: network)
    monkeypatch.setattr(precisions, "SplitModel", lambda network: network)
    source = SimpleNamespace(entry=find_model("shapes"), network=object())
    assert precisions.in_int8(Samples(source.entry, FILES), source) is source.network
    calibrating, choosing = (sorted(samples.files) for samples in seen)
    assert choosing == FILES[3::4]
    assert calibrating == [file for file in FILES if file not in choosing]
