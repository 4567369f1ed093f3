"""Models of users: factories, and programs saved by torch.export."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from partitions import partitions_of
from photographs import LEAST_VARIATION, least_variation, photograph_batch
from torch import Tensor, nn

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.detections import Limits
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec

HEIGHT, WIDTH = 40, 48
FACTORIES = """
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from torchvision.models.detection import maskrcnn_resnet50_fpn

from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.detections import Detections

Path(__file__).with_suffix(".ran").touch()


def net():
    net = nn.Sequential(nn.Conv2d(3, 8, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    net.image_size = (40, 48)
    net.labels = ("ape", "bee", "cat")
    return net


def entry():
    return find_model("shapes")


def wrong():
    return 5


def failing():
    raise RuntimeError("no such layer")


def maps():
    return nn.Conv2d(3, 8, 1)


def unlike():
    model = net()
    model.labels = ("ape", "bee")
    return model


def narrow():
    return nn.Conv2d(4, 8, 1)


no_function = 3


class Regions(nn.Module):
    def forward(self, images):
        found = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0)}
        return [found | {"masks": torch.zeros(0, 1, 224, 224), "keypoints": torch.zeros(0, 17, 3)} for _ in images]


def mask_rcnn():
    return maskrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, min_size=64, max_size=64, rpn_post_nms_top_n_test=5
    )


def several():
    net = nn.Module()
    net.forward = lambda images: (images[..., 0], images.sum(1).long())
    return net


def detector(decode):
    return lambda: replace(find_model("shapes"), name="mine", weights=None, decode=decode)


@dataclass(frozen=True)
class Masked(Detections):
    masks: torch.Tensor = torch.zeros(0, 8, 8)


def found(boxes=4, labels=torch.int64, kind=Detections):
    return kind(torch.zeros(0, boxes), torch.zeros(0), torch.zeros(0, dtype=labels))


good = detector(lambda outputs, limits: [found() for _ in outputs[0]])
masked = detector(lambda outputs, limits: [found(kind=Masked) for _ in outputs[0]])
named = detector(lambda outputs, limits: [{"boxes": torch.zeros(0, 4), "masks": torch.zeros(0)} for _ in outputs[0]])
triples = detector(lambda outputs, limits: [outputs[1][0], outputs[1][1]])
one_for_all = detector(lambda outputs, limits: [found()])
rotated = detector(lambda outputs, limits: [found(5), found(5)])
unsure = detector(lambda outputs, limits: [found(), found(labels=torch.float32)])
single = detector(lambda outputs, limits: [Detections(torch.zeros(4), torch.tensor(0.5), torch.tensor(1))] * 2)
listed = detector(lambda outputs, limits: [Detections([[0.0] * 4], [0.5], [1])] * 2)
greedy = detector(lambda outputs, limits: outputs[7])
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's module on Python's path. A file next to it shows whether it was imported."""
    path = tmp_path / "zoo_of_mine.py"
    path.write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, path.stem, raising=False)
    return path


class Program(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 5, 4, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).mean((2, 3)))  # type: ignore[no-any-return]


def save(path: Path, model: nn.Module, *, any_batch: bool = True) -> str:
    shapes = ({0: torch.export.Dim("batch", min=1)},) if any_batch else None
    torch.export.save(
        torch.export.export(model.eval(), (torch.zeros(2, 3, HEIGHT, WIDTH),), dynamic_shapes=shapes), path
    )
    return str(path)


def check_every_split_point(model: SplitModel, images: Tensor, expected: Tensor) -> None:
    for split_point in model.split_points:
        partitions = partitions_of(model, split_point.name)
        with torch.inference_mode():
            (found,) = partitions.head(*partitions.backbone(images.clone()))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)  # folded, and in other batches


def test_without_permission_no_code_is_run(factories: Path, tmp_path: Path) -> None:
    for name in ("zoo_of_mine:net", str(tmp_path / "any.pt2")):
        with pytest.raises(ConfigurationError, match=r"running its code; set allow_user_code to true"):
            load_model(ModelSpec(name, "default", "cpu"))
    assert not factories.with_suffix(".ran").exists()
    allowed = load_model(ModelSpec("zoo_of_mine:net", device="cpu", allow_user_code=True))
    assert factories.with_suffix(".ran").exists()
    with pytest.raises(ConfigurationError, match="allow_user_code"):  # though it is imported already
        load_model(ModelSpec(allowed.entry.name, "default", "cpu"))


def test_a_factorys_module_is_a_classifier(factories: Path) -> None:
    model = load_model(ModelSpec("zoo_of_mine:net", device="cpu", allow_user_code=True))
    assert model.entry.name == "zoo_of_mine:net"
    assert model.entry.image_shape == (3, HEIGHT, WIDTH)
    assert model.entry.labels == ("ape", "bee", "cat")
    assert [split_point.name for split_point in model.split_points] == ["input", "1", "2", "3", "output"]
    assert model.split_point("default").name == "3"
    (found,) = model.entry.decode((torch.tensor([[0.0, 9.0, 1.0]]),), Limits())
    assert found.labels.tolist() == [1]
    assert found.boxes.tolist() == [[0, 0, WIDTH, HEIGHT]]


def test_a_factorys_entry_is_used_unchanged(factories: Path) -> None:
    assert find_model("zoo_of_mine:entry", allow_user_code=True) is find_model("shapes")


def test_a_users_detector_is_tried_when_it_is_loaded(factories: Path) -> None:
    model = load_model(ModelSpec("zoo_of_mine:good", device="cpu", allow_user_code=True))
    assert model.entry.name == "mine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Regions", r"gives masks and keypoints \({boxes: float32 \(0, 4\), .*keypoints: .*\), which would be lost.*"),
        ("mask_rcnn", r"gives masks \({boxes: .*masks: float32 \(\d+, 1, 224, 224\)}\), which would be lost"),
        ("masked", r"gives masks \(Detections.*which would be lost"),
        ("named", r"gives masks \({boxes: .*which would be lost"),
        ("several", r"gives a tuple of 2: float32 \(2, 3, 224\), int64 \(2, 224, 224\) where logits"),
        ("triples", r"gives a list of 2: float32 \(4, 60, 80\), .* for two images; a list of two Detections"),
        ("one_for_all", r"gives a list of 1: Detections of {boxes: float32 \(0, 4\), .*a list of two Detections"),
        ("rotated", r"boxes: float32 \(0, 5\).*expected, each boxes float32 \(n, 4\)"),
        ("unsure", r"labels: float32 \(0,\)}.*labels int64 \(n,\)"),
        ("single", r"boxes: float32 \(4,\), scores: float32 \(\), .*a list of two Detections was expected"),
        ("listed", r"boxes: a list of 1.*a list of two Detections was expected"),
        ("greedy", r"cannot read the model's outputs for two images, a tuple of 2: float32 .*IndexError"),
    ],
)
def test_unsupported_outputs_are_refused(factories: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_model(ModelSpec(f"zoo_of_mine:{name}", device="cpu", allow_user_code=True))


def test_a_program_runs_in_partitions_at_any_batch_size(tmp_path: Path) -> None:
    images = photograph_batch(HEIGHT, WIDTH)
    whole = randomise(Program(), images)
    with torch.inference_mode():
        expected = whole(images)
    assert least_variation(expected) > LEAST_VARIATION
    model = load_model(ModelSpec(save(tmp_path / "mine.pt2", whole), device="cpu", allow_user_code=True))
    assert model.entry.image_shape == (3, HEIGHT, WIDTH)
    assert model.entry.labels == ("0", "1", "2")
    assert len(model.split_points) > 3
    for count in (1, 3, 7):
        check_every_split_point(model, images[:count].contiguous(memory_format=torch.channels_last), expected[:count])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("zoo_of_mine:nothing", "cannot be made .AttributeError"),
        ("no_such_zoo:net", "cannot be made .ModuleNotFoundError"),
        ("zoo_of_mine:", "cannot be made"),
        ("zoo_of_mine:no_function", "cannot be made .TypeError"),
        ("zoo_of_mine:failing", "cannot be made .RuntimeError: no such layer"),
        ("zoo_of_mine:wrong", "returns a int; a factory returns a torch.nn.Module or a ModelEntry"),
        ("zoo_of_mine:maps", r"gives float32 \(2, 8, 224, 224\) where logits \(2, classes\) were expected"),
        ("zoo_of_mine:unlike", r"gives float32 \(2, 3\) where logits \(2, 2\) were expected"),
        ("zoo_of_mine:narrow", r"does not take float32 \(2, 3, 224, 224\)"),
    ],
)
def test_a_factory_without_a_model_is_refused(factories: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refusal:
        load_model(ModelSpec(name, device="cpu", allow_user_code=True))
    assert f"'{name}'" in str(refusal.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "There is no exported program"),
        (lambda path: path.write_bytes(b"no program"), "cannot be read as an exported program"),
        (lambda path: save(path, Program(), any_batch=False), r"takes 2 images at a time.*dynamic_shapes"),
    ],
    ids=["missing", "broken", "fixed batch"],
)
def test_an_unusable_program_is_refused(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    path = tmp_path / "mine.pt2"
    make(path)
    with pytest.raises(ConfigurationError, match=message) as refusal:
        load_model(ModelSpec(str(path), device="cpu", allow_user_code=True))
    assert str(path) in str(refusal.value)
