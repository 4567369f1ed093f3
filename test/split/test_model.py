from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import pytest
import torch
from partitions import partitions_of
from photographs import LEAST_VARIATION, least_variation, photograph_batch, photographs
from safetensors.torch import save_file
from torchvision import models as zoo

from split_infer_ros.errors import ConfigurationError, UnknownModelError, UnknownSplitPointError, WeightsError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Limits
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.split import load as load_module
from split_infer_ros.split.load import choose_device, load_model
from split_infer_ros.split.model_spec import ModelSpec

pytestmark = pytest.mark.numeric


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> tuple[zoo.ResNet, str]:
    """torchvision's ResNet-18 with weights under which photographs get different answers, and their file."""
    images = photograph_batch()
    model = randomise(zoo.resnet18(), images)
    with torch.inference_mode():
        assert least_variation(model(images)) > LEAST_VARIATION
    path = tmp_path_factory.mktemp("weights") / "resnet18.safetensors"
    save_file(model.state_dict(), path)
    assert isinstance(model, zoo.ResNet)
    return model, str(path)


@pytest.mark.parametrize("split_point", ["default", "layer2", "output"])
def test_photographs_get_the_same_answer_as_from_torchvision(resnet: tuple[zoo.ResNet, str], split_point: str) -> None:
    """Compares pixels to scores with torchvision's transforms and model. Ours is folded, fused and split."""
    reference, path = resnet
    model = load_model(ModelSpec("resnet18", path, "cpu"))
    preprocess, partitions = model.entry.preprocess, partitions_of(model, split_point)
    transforms = zoo.ResNet18_Weights.IMAGENET1K_V1.transforms()
    chosen = photographs()[:4]
    with torch.inference_mode():
        images = torch.stack([transforms(torch.tensor(photograph).permute(2, 0, 1)) for photograph in chosen])
        expected = reference(images).softmax(dim=1)
        gathered = preprocess.gather([Pixels(p, (0, 1, 2)) for p in chosen], preprocess.staging(4))
        inputs = torch.from_numpy(preprocess.normalise(gathered))
        on_same_inputs = reference(inputs).softmax(dim=1)
        found = model.entry.decode(partitions.head(*partitions.backbone(inputs)), Limits(0.0, 0.5, 1000))
    assert len({int(scores.argmax()) for scores in expected}) > 1, "all photographs look alike"
    for detections, scores, same in zip(found, expected, on_same_inputs, strict=True):
        assert detections.labels[0] == same.argmax()
        # folding and fusing change nothing but rounding
        np.testing.assert_allclose(detections.scores, same[detections.labels], rtol=1e-3, atol=1e-6)
        # torchvision resizes in float: a grey value may be rounded to its neighbour
        np.testing.assert_allclose(detections.scores, scores[detections.labels], rtol=0.2, atol=0.005)


def test_equal_specs_share_a_model() -> None:
    first = load_model(ModelSpec("mobilenet_v2", "none", "cpu"))
    assert load_model(ModelSpec("mobilenet_v2", "none", "auto" if not torch.cuda.is_available() else "cpu")) is first
    assert first.backbone("features.3") is first.backbone("features.3")
    assert first.head("default") is first.head("classifier.0")


def test_an_unused_model_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_networks", "_loaded"):
        monkeypatch.setattr(load_module, name, WeakValueDictionary())  # nobody else's here
    model = load_model(ModelSpec("shapes", "none", "cpu"))
    partitions_of(model, "default")
    assert load_model(ModelSpec("shapes", "none", "cpu")) is model
    left = weakref.ref(model)
    del model
    gc.collect()
    assert left() is None


def test_untrained_weights_are_always_the_same() -> None:
    states = []
    for seed in range(2):
        torch.manual_seed(seed)
        model = load_model(ModelSpec("shapes", "none", "cpu"))
        states.append(copy.deepcopy(model.head("input").state_dict()))
        del model
        gc.collect()  # or the second would be the first
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_loading_leaves_the_random_state_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    model = load_model(ModelSpec("shapes", "none", "cpu"))
    assert torch.rand(1) == expected
    assert model.entry.name == "shapes"


def test_errors_name_what_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError, match="'lenet'"):
        load_model(ModelSpec("lenet", "none", "cpu"))
    with pytest.raises(WeightsError, match=r"missing\.pth"):
        load_model(ModelSpec("shapes", str(tmp_path / "missing.pth"), "cpu"))
    with pytest.raises(UnknownSplitPointError, match=r"shapes has no split point 'features\.1'.*neck"):
        load_model(ModelSpec("shapes", "none", "cpu")).backbone("features.1")
    with pytest.raises(ConfigurationError, match=r"device 'tpu'.*auto, cpu"):
        load_model(ModelSpec("shapes", "none", "tpu"))


@pytest.mark.parametrize("name", ["", "cuda:99", "CPU", "cuda:", "cpu:0"])
def test_a_missing_device_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="not on this machine"):
        choose_device(name)


def test_auto_is_the_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for count, expected in ((0, "cpu"), (2, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda count=count: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        assert choose_device("auto").type == expected
        assert choose_device("cpu").type == "cpu"
    assert choose_device("cuda:1") == "cuda:1"
    assert choose_device("cuda") == "cuda:0", "a device without its index is equal to none"
