"""The benchmark's ways, on the smallest model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import _layering_child as child
import demand_layering as bench
import pytest
import torch
from _layering_on_gpu import conclude_on_gpu, measure_on_gpu
from _layering_peak import peak
from _layering_turns import over_resident

from split_infer_ros.layering.pack import pack_model
from split_infer_ros.layering.streamed import StreamedHalf
from split_infer_ros.split.load import hollow_model, load_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "w"
    pack_model(load_model("shapes", "default", "cpu"), path, torch.get_num_threads())
    return path


@pytest.mark.parametrize("way", [way for way in bench.WAYS if way != child.OFFLOADED])
def test_every_way_gives_the_same_bits(path: Path, way: str) -> None:
    model = load_model("shapes", "default", "cpu")
    images = child.images_of(model)
    with torch.inference_mode():
        expected = model.backbone("output")(images)
        half = child.make(hollow_model("shapes"), path, way, (0, 2 << 20))
        passes = [bench.same(half(images), expected) for _ in range(3)]
        if isinstance(half, StreamedHalf):
            half.close()
    assert passes == [True] * 3


def test_the_trade_off_is_measured_where_it_was_predicted(path: Path) -> None:
    model = load_model("shapes", "default", "cpu")
    images = child.images_of(model)
    with torch.inference_mode():
        contents = child.contents_of(model, path)
        points, machine = bench.optimise(model, path, images, contents)
        assert all(point.delay >= machine.compute for point in points)
        disk = bench.Disk(contents)
        (measured,) = bench.compare(model, path, images, points, machine, disk, bench.QUICK)
    assert measured["predicted_ms"] >= 1e3 * machine.compute
    assert measured["measured_ms"] > 0
    assert len(disk.core_s) == 3, "one before all, and one on each side of what is measured"
    assert min(disk.core_s) > 0


def test_what_reads_in_vain_does_so_in_each_pass_beside_resident_weights() -> None:
    calls: list[str] = []
    halves = [lambda images, name=name: calls.append(name) or [images] for name in ("resident", "chosen")]
    over, beside = over_resident(*halves, lambda: calls.append("read"), torch.zeros(1), 3, 0.0)
    assert over > -1
    assert beside > -1
    assert Counter(calls) == {"resident": 2 * 3, "chosen": 3, "read": 3}


def test_memory_is_seen_from_outside(path: Path) -> None:
    assert peak("shapes", path, child.NOTHING, (0, 0)) > 0


def test_the_ways_of_a_gpu_give_the_same(tmp_path: Path) -> None:
    rows, times = measure_on_gpu("shapes", tmp_path / "packed", torch.device("cpu"), 2, 2)
    assert [row["way"] for row in rows] == list(times) == ["resident", "uploaded", *bench.WAYS[1:4]]
    assert all(row["same"] for row in rows)
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in times.values())
    same, *_ = conclude_on_gpu("shapes", rows)
    assert same.holds
