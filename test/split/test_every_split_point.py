"""At every split point of every model of the catalogue, both partitions in a row give what the whole model gives."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from unittest import mock

import pytest
import torch
from comparisons import rounding
from partitions import split, through_a_slot
from photographs import LEAST_VARIATION, photograph_batch
from torch import Tensor, nn

from split_infer_ros.models import dense, faster_rcnn
from split_infer_ros.models.catalogue import CATALOGUE, find_model
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.runtime.heap import trim
from split_infer_ros.split.graph import trace
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partitions import backbone_of
from split_infer_ros.split.split_points import choose_split_point
from split_infer_ros.split.torch_network import TorchNetwork
from split_infer_ros.split.traced_split_points import find_split_points

pytestmark = pytest.mark.numeric

FOLDED = 1e-4  # rounding of folded and fused convolutions, layer after layer


@dataclass(frozen=True)
class Case:
    """A model of the catalogue at the smallest image size at which each of its operations has something to do.

    Attributes:
        height, width: of an image.
        compared: the last split point before candidates are chosen. Behind it, rounding may swap near ties.
        classes: path of the layer that gives the score of each class; empty if the whole model gives just that.
        build: builds the model for that size; None if the catalogue's function does.
        photographs: how many photographs must get different answers.
        batch: how many of them run through the partitions.
    """

    height: int = 64
    width: int = 64
    compared: str = "output"
    classes: str = ""
    build: Callable[[], nn.Module] | None = None
    photographs: int = 7
    batch: int = 2


DENSE = Case(64, 96, "head.regression_head", "head.classification_head.cls_logits")
CASES = {
    "shapes": Case(96, 128, classes="head.classes"),
    "ssdlite320": Case(320, 320, classes="head.classification_head.module_list.0.1"),
    "fasterrcnn_mobilenet_320": Case(
        96, 128, "rpn.head", "roi_heads.box_predictor.cls_score", partial(faster_rcnn.FasterRcnn, 96, 128)
    ),
    "retinanet": replace(DENSE, build=partial(dense.RetinaNet, DENSE.height, DENSE.width)),
    "fcos": replace(DENSE, build=partial(dense.Fcos, DENSE.height, DENSE.width)),
    "vit_tiny": Case(224, 224),
    "ssd_resnet50": Case(classes="head.classification_head.module_list.0"),
    "yolov3": Case(classes="heads.0.1", batch=1),
    "yolov4": Case(classes="heads.2.1", batch=1),
    "ssd300": Case(300, 300, classes="head.classification_head.module_list.0", photographs=2, batch=1),
}
HEAVY = {  # steps between the split points that are tested, as built and as run; the slow test has all of them
    "ssd300": (15, 31),  # 31 billion multiplications an image, and no smaller input will do
    "ssd_resnet50": (3, 14),
    "yolov3": (6, 19),  # 248 MB of weights
    "yolov4": (10, 30),  # 257 MB of weights
    "vgg16": (3, 10),
    "fasterrcnn_mobilenet_320": (3, 10),
    "retinanet": (3, 10),
    "fcos": (3, 10),
}


@pytest.fixture(autouse=True)
def one_model_at_a_time() -> Iterator[None]:
    """Frees each model, of up to 550 MB, before the next one is built."""
    yield
    gc.collect()
    trim()


def seeded(case: Case, build: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    """Returns the model with weights under which photographs get different answers, and a batch of them."""
    photographs = photograph_batch(case.height, case.width)[: case.photographs]
    with mock.patch.object(nn.init, "kaiming_uniform_", lambda weight, **_: weight):  # seconds for what is drawn again
        built = (case.build or build)()
    model = randomise(built, photographs)
    scores: list[Tensor] = []
    hook = model.get_submodule(case.classes).register_forward_hook(lambda *call: scores.append(call[2]))
    with torch.inference_mode():
        model(photographs)
    hook.remove()
    by_class = scores[0].unflatten(0, (len(photographs), -1)).transpose(1, 2).flatten(2)  # image, class, place
    variation = by_class.std(dim=0).mean(dim=1)
    assert float(variation.min()) > LEAST_VARIATION, "each image gets the same answer, so any answer would do"
    return model, photographs[: case.batch].contiguous(memory_format=torch.channels_last)


def equal(found: tuple[Tensor, ...], whole: tuple[Tensor, ...]) -> bool:
    return len(found) == len(whole) and all(map(torch.equal, found, whole))


def check(name: str, step_as_built: int = 1, step_as_run: int = 1) -> None:
    """Checks every n-th split point of a model as it is built, and as the pipeline runs it."""
    entry, case = find_model(name), CASES.get(name, Case())
    model, images = seeded(case, entry.build)
    with torch.inference_mode():
        outputs = model(images.clone())
        whole = outputs if isinstance(outputs, tuple) else (outputs,)
        graph = trace(model)
        split_points = find_split_points(graph, (3, case.height, case.width))
        assert len(split_points) > 10
        for split_point in split_points[::step_as_built]:
            partitions = split(graph, split_point)
            found = through_a_slot(split_point, partitions.backbone, partitions.head, images)
            assert equal(found, whole), split_point.name
        expected = backbone_of(graph, choose_split_point(split_points, case.compared, name))(images.clone())

        sized = replace(entry, preprocess=replace(entry.preprocess, height=case.height, width=case.width))
        prepared = SplitModel(TorchNetwork(sized, model))
        assert [split_point.name for split_point in prepared.split_points] == [
            split_point.name for split_point in split_points
        ]
        for found_one, expected_one in zip(prepared.backbone(case.compared)(images.clone()), expected, strict=True):
            assert rounding(found_one, expected_one) <= FOLDED
        whole = prepared.head("input")(images.clone())
        for split_point in prepared.split_points[::step_as_run]:
            found = through_a_slot(
                split_point, prepared.backbone(split_point.name), prepared.head(split_point.name), images
            )
            assert equal(found, whole), split_point.name
            prepared.drop_partitions()  # each has its own packed weights


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in HEAVY])
def test_partitions_of_every_split_point_are_the_whole(name: str) -> None:
    """Bit for bit (see ``through_a_slot``): as built, and as the pipeline runs it, folded and fused alike."""
    check(name, step_as_run=5)


@pytest.mark.parametrize("name", HEAVY)
def test_partitions_of_a_heavy_model_are_the_whole(name: str) -> None:
    step_as_built, step_as_run = HEAVY[name]
    check(name, step_as_built, step_as_run)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CATALOGUE)
def test_partitions_of_all_split_points_are_the_whole(name: str) -> None:
    check(name)
