"""The package's own detector in int8: how good it is, and that its split points give the results of the whole.

Integers are added exactly on every processor, and weights have 7 bits, so that none overflows. What is left in float32
rounds differently from processor to processor, which moves single values by a step of int8.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

pytestmark = pytest.mark.numeric

for package in ("onnx", "onnxscript", "onnxruntime", "openvino", "nncf"):
    pytest.importorskip(package)

from split_infer_ros import __main__  # noqa: E402
from split_infer_ros.buffers.host_arrays import as_tensor  # noqa: E402
from split_infer_ros.engines.engine import Engine  # noqa: E402
from split_infer_ros.engines.execution_config import ExecutionConfig  # noqa: E402
from split_infer_ros.engines.precision import Precision  # noqa: E402
from split_infer_ros.errors import ConfigurationError  # noqa: E402
from split_infer_ros.models.detections import Limits  # noqa: E402
from split_infer_ros.models.evaluation import f1  # noqa: E402
from split_infer_ros.quantisation.quality import detect  # noqa: E402
from split_infer_ros.quantisation.samples import Samples  # noqa: E402
from split_infer_ros.sources.scenes import draw_scene  # noqa: E402
from split_infer_ros.split.load import load_model  # noqa: E402
from split_infer_ros.split.model import SplitModel  # noqa: E402
from split_infer_ros.split.model_engines import choose_precision, engines_for  # noqa: E402
from split_infer_ros.split.model_spec import ModelSpec  # noqa: E402

INT8 = ExecutionConfig(precision=Precision.INT8)
SEED = 2**33  # of scenes that nothing was trained on
MAX_MEAN_DIFFERENCE = 1e-3  # of the largest value: a step of int8 is 1/255, and few values move by one


def draw(folder: Path, first: int, count: int) -> list[Path]:
    files = [folder / f"{index:04}.png" for index in range(first, first + count)]
    for index, file in enumerate(files, first):
        cv2.imwrite(str(file), draw_scene(SEED, index).image[..., ::-1])
    return files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of images, and a cache in which shapes is kept in int8."""
    folder = tmp_path_factory.mktemp("int8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        draw(folder, 0, 50)
        patch.setattr("sys.argv", ["split_infer_ros", "quantise", "shapes", "--images", str(folder)])
        assert __main__.main() == 0
        yield folder


@pytest.fixture
def model(folder: Path) -> SplitModel:
    return load_model(ModelSpec("shapes", device="cpu", execution_config=INT8))


def test_f1_on_unseen_scenes(model: SplitModel, folder: Path, tmp_path: Path) -> None:
    files = draw(tmp_path, 1000, 40)
    found = detect(model, Samples(model.entry, files), "mAP", lambda: None)
    threshold = Limits().score_threshold
    kept = [
        type(each)(*(values[each.scores >= threshold] for values in (each.boxes, each.scores, each.labels)))
        for each in found
    ]
    scenes = [draw_scene(SEED, index) for index in range(1000, 1040)]
    score = f1(kept, [(scene.boxes, scene.labels) for scene in scenes])
    assert score.f1 >= 0.96, score


def test_all_split_points_stay_and_give_the_whole_result(model: SplitModel, folder: Path) -> None:
    source = load_model(ModelSpec("shapes", device="cpu"))
    assert [point.tensors for point in model.split_points] == [point.tensors for point in source.split_points]
    assert model.split_point("default").name == source.split_point("default").name
    images = as_tensor(np.concatenate(list(Samples(model.entry, sorted(folder.glob("*.png"))[:2]))))
    with torch.inference_mode():
        whole = model.head("input")(images)
        for point in model.split_points:
            parts = model.head(point.name)(*model.backbone(point.name)(images))
            for part, expected in zip(parts, whole, strict=True):
                assert float((part - expected).abs().mean() / expected.abs().max()) <= MAX_MEAN_DIFFERENCE, point.name


def test_a_backbone_in_int8_fits_a_head_in_float32(model: SplitModel, folder: Path) -> None:
    source = load_model(ModelSpec("shapes", device="cpu"))
    images = as_tensor(next(iter(Samples(model.entry, sorted(folder.glob("*.png"))[:1]))))
    with torch.inference_mode():
        expected = source.head("neck")(*source.backbone("neck")(images))
        for backbone, head in ((model, source), (source, model)):
            found = head.head("neck")(*backbone.backbone("neck")(images))
            for part, value in zip(found, expected, strict=True):
                # logits and logarithms of sizes, which int8 changes by a few of its steps
                assert 0 < float((part - value).abs().mean() / value.abs().max()) < 0.03


def test_openvino_alone_runs_it(model: SplitModel) -> None:
    source = load_model(ModelSpec("shapes", device="cpu"))
    assert model.execution_config.engine is Engine.OPENVINO
    assert engines_for(source, Precision.INT8) == ("openvino",)
    assert choose_precision(source, (Precision.INT8,), "auto") == (Precision.INT8, "")
    with pytest.raises(ConfigurationError, match=r"engine onnxruntime computes .* not in int8"):
        choose_precision(source, (Precision.INT8,), "onnxruntime")
    in_onnxruntime = ExecutionConfig(engine=Engine.ONNXRUNTIME, precision=Precision.INT8)
    with pytest.raises(ConfigurationError, match=r"engine onnxruntime computes .* not in int8"):
        load_model(ModelSpec("shapes", device="cpu", execution_config=in_onnxruntime))


def test_other_weights_need_a_file_of_their_own(folder: Path) -> None:
    source = load_model(ModelSpec("shapes", weights="random", device="cpu"))
    with pytest.raises(ConfigurationError, match="run `split_infer_ros quantise shapes --images FOLDER`"):
        choose_precision(source, (Precision.INT8,), "auto")
    precision, reason = choose_precision(source, (Precision.INT8, Precision.FP32), "auto")
    assert precision is Precision.FP32
    assert "was not quantised" in reason


def test_what_cannot_be_judged_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["quantise", "shapes", "--weights", "none", "--images", str(folder)]
    monkeypatch.setattr("sys.argv", ["split_infer_ros", *arguments])
    assert __main__.main() == 1, "an untrained detector finds nothing"
    assert "detects nothing with a score of 0.5" in capsys.readouterr().err
