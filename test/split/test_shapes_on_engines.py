"""``shapes`` by its ONNX file and by torch's network: which of them a spec means; both find the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

from comparisons import assert_same_detections  # noqa: E402

from split_infer_ros.buffers.host_arrays import as_tensor, to_host  # noqa: E402
from split_infer_ros.engines.engine import Engine  # noqa: E402
from split_infer_ros.engines.execution_config import ExecutionConfig  # noqa: E402
from split_infer_ros.errors import ConfigurationError, UnknownSplitPointError  # noqa: E402
from split_infer_ros.models.detections import Limits  # noqa: E402
from split_infer_ros.models.entry import outputs_of  # noqa: E402
from split_infer_ros.models.shapes_file import FILE, OPTIONS  # noqa: E402
from split_infer_ros.runtime.inference import inference_mode  # noqa: E402
from split_infer_ros.sources.scenes import draw_scene  # noqa: E402
from split_infer_ros.split.load import load_model  # noqa: E402
from split_infer_ros.split.located_spec import located  # noqa: E402
from split_infer_ros.split.model import SplitModel  # noqa: E402
from split_infer_ros.split.model_spec import ModelSpec  # noqa: E402
from split_infer_ros.split.onnx_network import OnnxNetwork  # noqa: E402
from split_infer_ros.split.split_points import as_specified  # noqa: E402
from split_infer_ros.split.torch_network import TorchNetwork  # noqa: E402

pytestmark = pytest.mark.numeric

SPEC = ModelSpec("shapes", device="cpu")
SHARED = ("input", "stem", "block1", "block2", "block3", "neck", "output")  # split points that both have


@pytest.fixture(scope="module")
def network() -> SplitModel:
    return load_model(SPEC)


@pytest.fixture(scope="module")
def images(network: SplitModel) -> object:
    return network.entry.preprocess.normalise(np.stack([draw_scene(40, index).image for index in range(8)]))


def of_file(engine: str) -> SplitModel:
    pytest.importorskip(engine)
    return load_model(replace(SPEC, on_torch=False, execution_config=ExecutionConfig(engine=Engine(engine))))


def found_by(backbone: SplitModel, head: SplitModel, split_point: str, images: object) -> list[object]:
    """What a model finds whose backbone is that of one model and whose head is that of another."""

    def fit(model: SplitModel, values: object) -> object:
        return to_host(values) if model.takes_arrays else as_tensor(values)

    specs = head.split_point(split_point).head_inputs
    with inference_mode():
        features = backbone.backbone(split_point)(fit(backbone, images))
        crossing = as_specified([fit(head, feature) for feature in features], specs)
        return head.entry.detections_of(outputs_of(head.head(split_point)(*crossing)), Limits())


def test_a_spec_means_the_network_or_the_file() -> None:
    assert located(SPEC) == replace(SPEC, on_torch=True)
    assert located(replace(SPEC, on_torch=True)) == replace(SPEC, on_torch=True)
    file = located(replace(SPEC, on_torch=False))
    assert (file.name, file.onnx_options, file.on_torch) == (str(FILE), OPTIONS, False)
    assert located(file) == file
    for weights in ("none", "random", "mine.safetensors"):
        assert located(replace(SPEC, on_torch=False, weights=weights)).name == "shapes"
    with pytest.raises(ConfigurationError, match="model 'shapes' knows that itself"):
        located(replace(SPEC, on_torch=False, input_size="480x640"))


def test_both_are_shared_by_their_own_users(network: SplitModel) -> None:
    file = load_model(replace(SPEC, on_torch=False))
    assert isinstance(network.network, TorchNetwork)
    assert isinstance(file.network, OnnxNetwork)
    assert load_model(replace(SPEC, on_torch=True)) is network
    assert load_model(replace(SPEC, on_torch=False)) is file


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_the_file_finds_what_the_network_finds(network: SplitModel, images: object, engine: str) -> None:
    file = of_file(engine)
    assert file.split_point("default").name == network.split_point("default").name == "neck"
    expected = found_by(network, network, "neck", images)
    assert sum(map(len, expected)) > 20
    for split_point in ("neck", "output"):
        for one, other in zip(found_by(file, file, split_point, images), expected, strict=True):
            assert_same_detections(one, other)


@pytest.mark.parametrize("split_point", SHARED)
def test_a_backbone_of_one_fits_a_head_of_the_other(network: SplitModel, images: object, split_point: str) -> None:
    file = of_file("onnxruntime")
    assert file.split_point(split_point).tensors == network.split_point(split_point).tensors
    expected = found_by(network, network, split_point, images)
    for backbone, head in ((file, network), (network, file)):
        for one, other in zip(found_by(backbone, head, split_point, images), expected, strict=True):
            assert_same_detections(one, other)


def test_a_split_point_of_the_network_alone_is_named() -> None:
    with pytest.raises(UnknownSplitPointError, match=r"^shapes has no split point 'block5'.* It has: input, stem, "):
        of_file("onnxruntime").split_point("block5")
