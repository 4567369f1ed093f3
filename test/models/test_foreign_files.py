"""Files of other frameworks, folders and addresses are no models, and the sentence says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from split_infer_ros.errors import UnknownModelError
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.onnx_models import is_onnx_file


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("yolo11n.pt", "'yolo export model=yolo11n.pt format=onnx'"),
        ("/models/BEST.PT", "export it to ONNX"),
        ("net.pth", "model takes the network's name and weights this file"),
        ("det.engine", "an engine of TensorRT, .* take the ONNX file from which it was built"),
        ("det.tflite", "convert it to ONNX"),
        ("det.xml", "OpenVINO's own format; take the ONNX file .* set engine to openvino"),
        ("frozen.pb", "convert it to ONNX"),
        ("det.onnx ", "blanks around it; take 'det.onnx'"),
        ("file:///models/det.onnx", "is an address, .* take '/models/det.onnx'"),
        ("https://example.org/det.onnx", "download the file, and name its path"),
    ],
)
def test_what_is_a_model_elsewhere_is_refused_with_advice(name: str, advice: str) -> None:
    with pytest.raises(UnknownModelError, match=advice):
        find_model(name)


def test_folders_name_the_models_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownModelError, match=r"is a folder; model takes a file, such as FILE\.onnx"):
        find_model(str(tmp_path))
    (tmp_path / "det.onnx").touch()
    with pytest.raises(UnknownModelError, match=r"is a folder; model takes a file; there are det\.onnx"):
        find_model(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shapes").mkdir()
    assert find_model("shapes").name == "shapes", "a name of the catalogue stays one"


@pytest.mark.parametrize("name", ["~nobody_of_this_name/x", "a" * 300, "a/" * 3000, "a\0b"])
def test_a_name_that_cannot_be_a_path_is_no_model(name: str) -> None:
    with pytest.raises(UnknownModelError, match="There is no model"):
        find_model(name)


def test_the_suffix_of_an_onnx_file_may_be_upper_case() -> None:
    assert is_onnx_file("DET.ONNX")
    assert is_onnx_file("det.onnx")
    assert not is_onnx_file("det.onnx.data")
