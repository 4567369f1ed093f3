"""The trained detector of the catalogue finds what is on photographs, on every engine and wherever it is split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import pytest
from external_files import shared_file

from split_infer_ros import LocalPipeline, StageSettings, load_model
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.errors import WeightsError
from split_infer_ros.models import downloads
from split_infer_ros.models.detections import Limits
from split_infer_ros.server.settings import DropPolicy
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec

NAME = "yolox_nano"
LIMITS = Limits(score_threshold=0.25, nms_threshold=0.45)
PHOTOS = ("coffee.png", "chelsea.png", "astronaut.png")

pytest.importorskip("onnx")
pytestmark = pytest.mark.timeout(600)  # each engine's first load has the file inspected, in a process of its own


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty cache folder, in which all tests keep the file and what was inspected."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder / "split_infer_ros"


@pytest.fixture
def file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The release's file, which is also what the catalogue downloads."""
    path = shared_file(f"models/{NAME}.onnx")
    monkeypatch.setitem(downloads.DOWNLOADS, NAME, replace(downloads.DOWNLOADS[NAME], url=path.as_uri()))
    return path


def load(engine: Engine, **spec: object) -> SplitModel:
    pytest.importorskip(engine.value)
    return load_model(ModelSpec(NAME, execution_config=ExecutionConfig(engine=engine), **spec))  # type: ignore[arg-type]


def found(model: SplitModel, split_point: str) -> list[list[tuple[str, float]]]:
    """Returns the name and score of what is on each photograph."""
    settings = StageSettings(split_point=split_point, drop_policy=DropPolicy.BLOCK)
    images = [cv2.cvtColor(cv2.imread(str(shared_file(f"photos/{name}"))), cv2.COLOR_BGR2RGB) for name in PHOTOS]
    with LocalPipeline(model, settings, limits=LIMITS) as pipeline:
        results = [result.detections for result in pipeline.run(images)]
    return [
        [(model.entry.labels[int(label)], float(score)) for label, score in zip(each.labels, each.scores, strict=True)]
        for each in results
    ]


@pytest.mark.parametrize("engine", [Engine.ONNXRUNTIME, Engine.OPENVINO, Engine.TORCH])
def test_it_finds_a_cup_a_cat_and_a_person(file: Path, engine: Engine) -> None:
    model = load(engine, weights=str(file), device="cpu", on_torch=engine is Engine.TORCH)
    first, middle, last = (
        model.split_points[index].name for index in (0, len(model.split_points) // 2, len(model.split_points) - 1)
    )
    for split_point in (first, middle, last):
        coffee, chelsea, astronaut = found(model, split_point)
        # to two digits, as it was read elsewhere; engines round in the seventh
        assert ("cup", 0.9) in [(name, round(score, 2)) for name, score in coffee]
        assert ("cat", 0.62) in [(name, round(score, 2)) for name, score in chelsea]
        assert [name for name, _ in astronaut].count("person") == 1


def test_it_is_downloaded_and_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(Engine.ONNXRUNTIME)
    kept = Path(model.entry.name)
    assert kept != file
    assert kept.read_bytes() == file.read_bytes()
    download = downloads.DOWNLOADS[NAME]
    monkeypatch.setitem(downloads.DOWNLOADS, NAME, replace(download, url="file:///none"))
    assert load(Engine.ONNXRUNTIME) is model
    kept.unlink()
    with pytest.raises(WeightsError, match="could not be downloaded"):
        load(Engine.ONNXRUNTIME)


def test_it_is_inspected_like_a_users_file(file: Path, cache: Path) -> None:
    load(Engine.ONNXRUNTIME)
    assert list((cache / "inspected").glob("*.json"))
