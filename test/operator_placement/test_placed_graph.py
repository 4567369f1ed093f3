"""Placed models give the results of whole ones. Here GPU and CPU are two names of the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from networks import graph_of
from photographs import photograph_batch
from torch import Tensor, fx, nn

from split_infer_ros.engines.fusion import fuse_convolutions
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.classifier import classify
from split_infer_ros.models.dense import RetinaNet
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.operator_placement.operator_graph import nbytes_of, read_operators, with_decode
from split_infer_ros.operator_placement.operator_list import OperatorList
from split_infer_ros.operator_placement.placed_graph import apply_plan, copy_to
from split_infer_ros.operator_placement.plan import PlacementPlan, Rule, Tag, make_plan
from split_infer_ros.split.export import export
from split_infer_ros.split.graph import prepare
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.torch_graphs.value_sizes import size_of

DEVICES = {Tag.GPU: torch.device("cpu", 0), Tag.CPU: torch.device("cpu")}
LISTED = OperatorList.read()


def alternate() -> Rule:
    """Puts every other operator that computes on the GPU, so that there are as many copies as possible."""
    count = iter(range(10_000))
    return lambda operator: Tag.ANY if LISTED(operator) is Tag.ANY else (Tag.GPU, Tag.CPU)[next(count) % 2]


def check_devices(placed: fx.GraphModule, plan: PlacementPlan) -> None:
    """Checks that each operator gets its inputs on its own processor."""
    sizes = {operator.name: operator.nbytes for operator in plan.operators}
    tags: dict[fx.Node, Tag] = {}
    for node in placed.graph.nodes:
        if node.target is copy_to:
            source, device = node.args
            tags[node] = Tag.GPU if device == DEVICES[Tag.GPU] else Tag.CPU
            assert tags[node] is not tags[source], "a copy to the same processor"
        elif node.op != "get_attr":
            tags[node] = plan.devices[node.name]
            for source in node.all_input_nodes:
                is_anywhere = source.op == "get_attr" or sizes.get(source.name, 0) is None
                assert is_anywhere or tags[source] is tags[node], (node.name, source.name)
    kinds = {operator.name: operator.kind for operator in plan.operators}
    names = [node.name for node in tags if node.target is not copy_to]
    assert names == [name for name in kinds if name in set(names)]
    left_out = {kinds[name] for name in kinds if name not in set(names)}
    assert left_out <= {"ReLU", "ReLU6", "Hardswish"}, "activations are part of convolutions"
    assert len(tags) - len(names) == len(plan.copies)


def run_both(
    graph: fx.GraphModule, entry: ModelEntry, images: Tensor, *, limits: Limits, rule: Rule
) -> tuple[PlacementPlan, int]:
    """Compares the placed model with the whole one. Returns the plan and the number of detections."""
    joined = with_decode(graph, entry)
    plan = make_plan(read_operators(joined, tuple(images.shape[1:])), rule)  # type: ignore[arg-type]
    placed = apply_plan(joined, plan, DEVICES)
    check_devices(placed, plan)
    fused = copy.deepcopy(graph)
    fuse_convolutions(fused)  # as those of the placed one are
    with torch.inference_mode():
        outputs = fused(images.clone())
        expected = entry.decode(outputs if isinstance(outputs, tuple) else (outputs,), limits)
        for _ in range(2):
            # the same bits: both devices are the CPU here, so the same operations run on the same values
            for found, whole in zip(placed(images.clone(), limits), expected, strict=True):
                assert np.array_equal(found.labels, whole.labels)
                assert np.array_equal(found.scores, whole.scores)
                assert np.array_equal(found.boxes, whole.boxes)
    return plan, sum(map(len, expected))


@pytest.mark.parametrize(
    ("name", "rule_name"),
    [("shapes", "listed"), ("shapes", "alternating"), ("ssdlite320", "listed"), ("fasterrcnn_mobilenet_320", "listed")],
)
def test_a_placed_model_gives_the_whole_models_results(name: str, rule_name: str) -> None:
    model = load_model(ModelSpec(name, "none", "cpu"))
    images = photograph_batch(*model.entry.image_shape[1:])[:2].contiguous(memory_format=torch.channels_last)
    rule = LISTED if rule_name == "listed" else alternate()
    plan, count = run_both(graph_of(model), model.entry, images, limits=Limits(0.0, 0.5, 20), rule=rule)
    assert count > 0
    if rule_name == "listed":
        assert plan.unlisted == {}
        assert len(plan.copies) <= 5
    else:
        assert len(plan.copies) > 20


@pytest.mark.parametrize(
    ("name", "build"), [("retinanet", partial(RetinaNet, 64, 96)), ("vit_tiny", find_model("vit_tiny").build)]
)
def test_one_copy_leads_from_the_network_to_sorting(name: str, build: Callable[[], nn.Module]) -> None:
    entry = find_model(name)
    joined = with_decode(prepare(build().eval()), entry)
    shape = (3, 64, 96) if name == "retinanet" else entry.image_shape
    plan = make_plan(read_operators(joined, shape), LISTED)
    assert plan.unlisted == {}
    assert [(copy.target, plan.devices[copy.before]) for copy in plan.copies] == [(Tag.CPU, Tag.CPU)]


class Awkward(nn.Module):
    """A model with arithmetic in place, constants on both processors, a layer used twice, and several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.mix = nn.Conv2d(6, 6, 1)
        self.relu = nn.ReLU(inplace=True)
        self.scale = nn.Parameter(torch.tensor([0.5]))
        self.last = nn.Linear(6, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv(images)
        before = x.flip(3)
        y = self.relu(x) * self.scale  # x is changed, and read again
        z = self.mix(y) + self.mix(before) + x
        z += y * self.scale
        best = z.topk(2, dim=3)
        return self.last((best.values.sum(3) + best.indices[..., 0]).mean(2)).sort(dim=1).values  # type: ignore[no-any-return]


def awkward_entry(model: nn.Module) -> ModelEntry:
    return replace(find_model("mobilenet_v2"), build=lambda: model, labels=tuple("abcd"), decode=classify(20, 24))


@pytest.mark.parametrize("how", ["traced", "exported"])
@pytest.mark.parametrize("rule", ["listed", "alternating", "everything unlisted"])
def test_arithmetic_in_place_survives_placement(how: str, rule: str) -> None:
    images = photograph_batch(20, 24)
    model = randomise(Awkward(), images)
    graph = export(model, (3, 20, 24), ValueError()) if how == "exported" else prepare(model)
    chosen: dict[str, Rule] = {"listed": LISTED, "alternating": alternate(), "everything unlisted": lambda _: None}
    plan, count = run_both(graph, awkward_entry(model), images, limits=Limits(0.0), rule=chosen[rule])
    assert count == 4 * len(images)
    if rule == "listed":
        assert plan.unlisted.keys() <= {"flip"}
    if rule == "everything unlisted":
        assert plan.copies == ()


def test_placing_shares_weights_and_keeps_the_model() -> None:
    model = load_model(ModelSpec("shapes", "none", "cpu"))
    before = str(graph_of(model).graph)
    joined = with_decode(graph_of(model), model.entry)
    placed = apply_plan(joined, make_plan(read_operators(joined, model.entry.image_shape), LISTED), DEVICES)
    assert str(graph_of(model).graph) == before
    pointers = {parameter.data_ptr() for parameter in graph_of(model).parameters()}
    assert {parameter.data_ptr() for parameter in placed.parameters()} <= pointers


def test_a_copy_includes_every_nested_tensor() -> None:
    value = [torch.zeros(3), {"a": (torch.zeros(2).topk(1), Detections.empty())}, torch.device("cpu"), 7]
    assert nbytes_of(size_of(value)) == 12 + (4 + 8)
    assert nbytes_of(size_of([7, "a", None, Detections.empty()])) is None
    other_device = torch.device("meta")
    moved = copy_to(value, other_device)
    assert moved[0].device == moved[1]["a"][0].indices.device == other_device
    assert moved[1]["a"][1] is value[1]["a"][1], "detections are on the host anyway"
    assert moved[2:] == [other_device, 7]
