"""The check-up of the storage: what it measures, and what it says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from split_infer_ros.telemetry.checkup import Level
from split_infer_ros.weight_streaming import storage_checkup
from split_infer_ros.weight_streaming.storage_checkup import MODELS, check_storage, compute_rate, judge, read_rate
from split_infer_ros.weight_streaming.weights_file import WeightsFile

FOLDER = Path("/data/weights")


def test_rates_are_measured_and_nothing_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "weights"
    bytes_s, _ = read_rate(folder)
    assert 1e6 < bytes_s < 1e12
    assert 1e6 < compute_rate() < 1e15
    assert list(folder.iterdir()) == []


def test_models_are_named_behind_which_reading_hides() -> None:
    found = judge(FOLDER, 1e9, True, 100e9)  # VGG-16 is read in 0.55 s and computed in 0.31 s
    assert found.level is Level.OK
    assert "1,000 MB/s in /data/weights, and the CPU computes 100 GFLOP/s" in found.found
    assert "reading can hide behind yolov4;" in found.found
    assert "resnet50 (1.2 times as long), vgg16 (1.8 times as long), alexnet (17.1 times as long)" in found.found


def test_disk_that_delays_every_model_gives_advice() -> None:
    found = judge(FOLDER, 50e6, True, 1e12)
    assert found.level is Level.NOTE
    assert "hide" not in found.found
    assert "leave weights_residency at resident" in found.advice


def test_fast_disk_hides_behind_all_models() -> None:
    found = judge(FOLDER, 20e9, True, 50e9)
    assert found.found.endswith("reading can hide behind yolov4, resnet50, vgg16, alexnet")
    assert found.advice == ""


def test_file_system_without_direct_reads_is_named() -> None:
    assert judge(FOLDER, 20e9, False, 50e9).advice == "name a file on a disk in weights_file."


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = check_storage(tmp_path / "file" / "weights")
    assert found.level is Level.NOTE
    assert "cannot be measured (" in found.found


def test_disk_that_fails_while_it_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.preadv", fail)
    found = check_storage(tmp_path)
    assert found.level is Level.NOTE
    assert "Input/output error" in found.found
    assert list(tmp_path.iterdir()) == []


def test_slow_disk_is_read_for_a_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_checkup, "MAX_READ_S", 0.0)
    reads: list[int] = []
    read = WeightsFile.read
    monkeypatch.setattr(WeightsFile, "read", lambda *arguments: (reads.append(1), read(*arguments)))
    assert read_rate(tmp_path)[0] > 0
    assert len(reads) == 1


@pytest.mark.parametrize("name", MODELS)
def test_work_is_that_of_the_catalogues_models(name: str) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from split_infer_ros.models.catalogue import find_model

    entry = find_model(name)
    with torch.device("meta"):
        network = entry.build().eval()
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        network(torch.zeros(1, *entry.image_shape, device="meta"))
    work = MODELS[name]
    assert counter.get_total_flops() == pytest.approx(work.flops, rel=0.01)
    assert sum(each.nbytes for each in network.parameters()) == pytest.approx(work.nbytes, rel=0.01)
