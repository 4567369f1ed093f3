"""An ONNX file in an entry that a user's Python changes, and modules that give a list."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("onnxruntime")

from onnx_files import network, ultralytics
from photographs import photographs

from split_infer_ros import LocalPipeline, ModelSpec, load_model, onnx_entry
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.split.model import SplitModel

NAMES = {"names": "{0: 'a', 1: 'b', 2: 'c'}", "imgsz": "[32, 32]"}
MODULE = '''
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from split_infer_ros import Detections, ModelEntry, Preprocess, onnx_entry

FILE = str(Path(__file__).with_name("mine.onnx"))


def renamed():
    entry = onnx_entry(FILE)
    return replace(entry, labels=("x", "y", "z"), summary="mine")


def decode_tensors(outputs, limits):
    """A decode of the user's own: the whole image, with the number of outputs as its class."""
    assert all(map(torch.is_tensor, outputs))
    box = torch.tensor([[0.0, 0.0, 32.0, 32.0]])
    return [Detections(box, torch.tensor([0.9]), torch.tensor([len(outputs)])) for _ in outputs[0]]


def decode_arrays(outputs, limits):
    """The same in NumPy."""
    assert all(isinstance(output, np.ndarray) for output in outputs)
    box = np.array([[0, 0, 32, 32]], np.float32)
    return [Detections(box, np.array([0.9], np.float32), np.array([len(outputs)])) for _ in outputs[0]]


def unread():
    return replace(onnx_entry(FILE, decoder="none"), decode=decode_tensors)


def recognised():
    return replace(onnx_entry(FILE), decode=decode_tensors)


def in_arrays():
    return replace(onnx_entry(FILE, decoder="none"), decode=decode_arrays, decodes_arrays=True)


def broken():
    return replace(onnx_entry(FILE), decode=lambda outputs, limits: outputs[1])


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 4, 4)

    def forward(self, images):
        maps = self.layer(images)
        return [maps.flatten(2).transpose(1, 2), maps.mean((2, 3))]


def listed():
    def decode(outputs, limits):
        boxes, scores = outputs
        ones = torch.ones(1)
        return [Detections(boxes[index, :1] * 0 + 8, ones * 0.9, ones.long()) for index in range(len(scores))]

    return ModelEntry("pair", "gives a list", Pair, None, Preprocess(32, 32), ("a", "b"), None, decode)


class Scores(nn.Module):
    image_size = 32

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 5)

    def forward(self, images):
        return [self.layer(images.mean((2, 3)))]


def one():
    return Scores()
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a user's module, beside an ONNX file."""
    name = f"mine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    model = network(21, 7, scale=[32, 32, 16, 16, 1, 1, 1], metadata=ultralytics(**NAMES), transposed=True)
    (tmp_path / "mine.onnx").write_bytes(model.SerializeToString())
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def load(module: str, factory: str, *, on_torch: bool = False) -> SplitModel:
    return load_model(ModelSpec(f"{module}:{factory}", device="cpu", allow_user_code=True, on_torch=on_torch))


def detections_of(model: SplitModel, images: list[np.ndarray]) -> list[list[tuple[int, float]]]:
    with LocalPipeline(model) as pipeline:
        results = [result.detections for result in pipeline.run(images)]
    return [
        [(int(label), round(float(score), 4)) for label, score in zip(each.labels, each.scores, strict=True)]
        for each in results
    ]


def test_an_entry_of_a_file_is_a_model_like_the_file(module: str, tmp_path: Path) -> None:
    """The same graph with the same images on the same engine, so results are the same to the last bit."""
    mine = load(module, "renamed")
    files = load_model(ModelSpec(str(tmp_path / "mine.onnx"), device="cpu"))
    assert mine.entry.labels == ("x", "y", "z")
    assert [point.name for point in mine.split_points] == [point.name for point in files.split_points]
    images = [np.ascontiguousarray(image) for image in photographs()[:3]]
    found = detections_of(mine, images)
    assert found == detections_of(files, images)
    assert any(found)


@pytest.mark.parametrize("engine", [Engine.ONNXRUNTIME, Engine.OPENVINO])
def test_every_engine_runs_an_entry_of_a_file(module: str, engine: Engine) -> None:
    pytest.importorskip(engine.value)
    model = load(module, "renamed").placed(torch.device("cpu"), ExecutionConfig(engine=engine))
    assert detections_of(model, [np.ascontiguousarray(photographs()[0])])[0]


def test_torch_runs_an_entry_of_a_file(module: str) -> None:
    pytest.importorskip("onnx2torch")
    model = load(module, "renamed", on_torch=True)
    assert model.network.native_engine is Engine.TORCH
    assert detections_of(model, [np.ascontiguousarray(photographs()[0])])[0]


@pytest.mark.parametrize("factory", ["unread", "recognised", "in_arrays"])
def test_a_users_decode_reads_a_files_outputs(module: str, factory: str) -> None:
    assert detections_of(load(module, factory), [np.zeros((40, 40, 3), np.uint8)]) == [[(1, 0.9)]]


def test_a_decode_that_does_not_fit_a_file_is_refused(module: str) -> None:
    with pytest.raises(ConfigurationError, match=r"The decode of model .* cannot read the model's outputs"):
        load(module, "broken")


def test_a_module_may_give_a_list(module: str) -> None:
    model = load(module, "listed")
    assert detections_of(model, [np.zeros((40, 40, 3), np.uint8)]) == [[(1, 0.9)]]
    assert load(module, "one").entry.labels == ("0", "1", "2", "3", "4")


def test_a_file_that_is_no_model_has_no_entry(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no graph")
    with pytest.raises(ConfigurationError, match=r"bad\.onnx cannot be read as an ONNX file"):
        onnx_entry(str(tmp_path / "bad.onnx"))
