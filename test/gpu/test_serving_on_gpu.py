"""Several models as one launch on a real GPU."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from measured_costs import measure_costs
from real_gpu import GPU, free_bytes
from stacked_nets import seeded_models

from split_infer_ros.autotuning.opening import tenant_opener
from split_infer_ros.engines.cuda.model_streams import ModelStreams
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.engines.result_difference import MAX_LOW_PRECISION_DIFFERENCE, MAX_ROUNDING, difference
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.measurements.database import Database
from split_infer_ros.models.detections import Limits
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.server.execution.forked_graphs import ForkedGraphs
from split_infer_ros.server.execution.merge_runner import MergeRunner
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.improving.improve import Improve
from split_infer_ros.server.server import Server
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.stacked_model import StackedModel

NAMES = ("alexnet", "resnet18", "squeezenet1_0")
LONG_S = 60.0
SETTINGS = SharedSettings(device=str(GPU), memory_policy="device", improve=Improve.NEVER)
MB = 1 << 20


def test_a_forked_graph_gives_what_each_model_gives_alone() -> None:
    models = {name: load_model(ModelSpec(name, "random", "cuda:0")) for name in NAMES}
    runner = MergeRunner(torch.device("cuda", 0))
    runner.load({name: model.backbone("output") for name, model in models.items()}, dict.fromkeys(NAMES, 1.0))
    for counts, recorded in (((1, 1, 1), True), ((3, 2, 1), False), ((3, 2, 1), True), ((4, 2, 1), True)):
        inputs = {
            name: torch.rand_like(models[name].blank_images(count)) for name, count in zip(NAMES, counts, strict=True)
        }
        if recorded:
            runner.prepare(inputs)
        else:
            runner.prepare({NAMES[0]: inputs[NAMES[0]]})  # of the others each kernel is launched by itself
        found = runner.run(inputs)
        assert runner.graphs is not None
        assert len(runner.graphs) >= 1
        for name, images in inputs.items():
            with torch.inference_mode():
                expected = models[name].backbone("output")(images)
            for mine, other in zip(found[name], expected, strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)
    costs = measure_costs(models, runner, sizes=(1, 2), rounds=2)
    assert all(seconds > 0 for seconds in costs.fused_s.values())
    runner.close()


def test_recorded_combinations_stay_within_their_memory() -> None:
    models = {name: load_model(ModelSpec(name, "random", "cuda:0")) for name in NAMES}
    device = torch.device("cuda", 0)
    queue = Stream(device)
    graphs = ForkedGraphs(ModelStreams(device, queue), max_bytes=1)
    backbones = {name: model.backbone("output") for name, model in models.items()}
    for name in NAMES:
        with torch.inference_mode(), queue.work("execution"):
            graphs.prepare({name: backbones[name]}, {name: models[name].blank_images(2)})
            graphs.run({name: backbones[name]}, {name: models[name].blank_images(2)})
    assert graphs.bytes <= 1


@pytest.mark.parametrize("graphs", [True, False])
def test_tenants_get_their_own_results_from_a_gpu(tmp_path: Path, graphs: bool) -> None:
    delivered: dict[str, list[int]] = {name: [] for name in "abcd"}
    errors: list[str] = []
    database = Database(tmp_path / "tuning.jsonl")
    pipeline = Server(
        replace(SETTINGS, max_waiting=20, cuda_graphs=graphs),
        Limits(),
        lambda tenant, origin, detections, labels: delivered[tenant].append(origin.header),
        lambda name, error: errors.append(f"{name}: {error}"),
        device=GPU,
        open_model=tenant_opener(database),
        database=database,
    )
    models = {"a": "shapes", "b": "squeezenet1_0", "c": "shapes"}
    tenants = [Tenant(name, model, "random") for name, model in models.items()]
    models["d"] = "shapes"  # with other weights, so both may run as one network
    assert pipeline.set_tenants([*tenants, Tenant("d", "shapes")]) == {}
    assert list(pipeline.view.stacks) == ["shapes with weights random + shapes"]
    pipeline.start()
    for number in range(10):
        for name in models:
            pipeline.intake(name).submit(Pixels.blank(), Origin(number, name, 480, 640), time.monotonic())
    pipeline.stop(60.0)
    assert errors == []
    assert delivered == {name: list(range(10)) for name in models}
    assert all(pipeline.view.report(name, time.monotonic()).counts.published == 10 for name in models)
    pipeline.close()


@pytest.mark.parametrize(
    ("name", "precision", "graphs"),
    [
        ("resnet18", Precision.FP32, True),
        ("resnet18", Precision.FP16, True),
        ("mobilenet_v2", Precision.FP32, True),
        ("squeezenet1_0", Precision.FP32, False),
    ],
)
def test_one_network_gives_what_each_model_gives_alone(name: str, precision: Precision, graphs: bool) -> None:
    """The same sums in another order; a GPU may round the factors of float32 to 10 bits in one of the two only."""
    config = ExecutionConfig(precision=precision)
    models = {key: model.placed(GPU, config) for key, model in seeded_models(name, 3, side=128).items()}
    stack = StackedModel(models, "output")
    runner = MergeRunner(GPU, graph_bytes=1 << 30 if graphs else None)
    backbones = {key: model.backbone("output") for key, model in models.items()}
    runner.load({**backbones, stack.name: stack.backbone}, dict.fromkeys((*models, stack.name), 1.0))
    limit = MAX_ROUNDING if precision is Precision.FP32 else 2 * MAX_LOW_PRECISION_DIFFERENCE
    for counts in ({"a": 2, "b": 2, "c": 2}, {"a": 1, "b": 2}, {"c": 1, "b": 1}, {"a": 3, "b": 1, "c": 2}):
        images = {key: torch.randn_like(models[key].blank_images(count)) for key, count in counts.items()}
        runner.prepare({stack.name: stack.blank_images(max(counts.values()))})
        found: dict[str, list[torch.Tensor]] = {}
        launched = runner.launch(
            images, lambda key, features: found.update({key: [each.clone() for each in features]}), stack=stack
        )
        launched.done.wait()
        assert launched.failed == {}
        with torch.inference_mode():
            expected = {key: models[key].backbone("output")(own) for key, own in images.items()}
        for key in counts:
            assert expected[key][0].std() > 1e-3
            assert difference(found[key], expected[key]) <= limit, (key, counts)
    if graphs:
        assert runner.graphs is not None
        assert all(((stack.name, size),) in runner.graphs for size in (1, 2, 3))
    runner.close()


@pytest.mark.parametrize("as_one", [True, False])
def test_graphs_that_run_side_by_side_do_not_share_memory(as_one: bool) -> None:
    """Both models end in large linear layers: cuBLAS gives each of its calls a workspace by the stream."""
    models = {name: load_model(ModelSpec(name, "random", str(GPU))) for name in ("alexnet", "vgg16")}
    runner = MergeRunner(GPU)
    runner.load({name: model.backbone("output") for name, model in models.items()}, dict.fromkeys(models, 1.0))
    random = torch.Generator(str(GPU)).manual_seed(0)
    batches = [
        {name: torch.randn(model.blank_images(2).shape, generator=random, device=GPU) for name, model in models.items()}
        for _ in range(4)
    ]
    expected = []
    with torch.inference_mode():
        for batch in batches:
            expected.append({name: models[name].backbone("output")(images)[0] for name, images in batch.items()})
    if as_one:
        runner.prepare(batches[0])
    else:  # each model's own graph is launched, beside the other's
        for name, images in batches[0].items():
            runner.prepare({name: images})
    for turn in range(200):
        found = runner.run(batches[turn % 4])
        for name, (mine,) in found.items():
            other = expected[turn % 4][name]
            assert other.std() > 0
            # The same kernels or others, in float32: sums in another order, of the largest value's size.
            assert (mine - other).abs().max() <= 1e-3 * other.abs().max(), (turn, name)
    runner.close()


def test_models_come_and_go_under_load(tmp_path: Path) -> None:
    delivered: dict[str, int] = dict.fromkeys("abc", 0)
    errors: list[str] = []

    def deliver(tenant: str, origin: Origin, detections: object, labels: object) -> None:
        delivered[tenant] += 1

    database = Database(tmp_path / "tuning.jsonl")
    pipeline = Server(
        replace(SETTINGS, max_waiting=4),
        Limits(),
        deliver,
        lambda name, error: errors.append(f"{name}: {error}"),
        device=GPU,
        open_model=tenant_opener(database),
        database=database,
    )
    stays = Tenant("a", "shapes", "random")
    comes = [Tenant("b", "squeezenet1_0", "random"), Tenant("c", "alexnet", "random")]
    assert pipeline.set_tenants([stays]) == {}
    pipeline.start()
    free = []
    for turn in range(12):  # seven streams a model: far more than the 32 that torch deals out
        guests = comes[: 1 + turn % 2]
        assert pipeline.set_tenants([stays, *guests]) == {}
        before = dict(delivered)
        end = time.monotonic() + LONG_S
        while any(delivered[tenant.name] == before[tenant.name] for tenant in (stays, *guests)):
            assert time.monotonic() < end, delivered
            for tenant in (stays, *guests):
                pipeline.intake(tenant.name).submit(
                    Pixels.blank(), Origin(turn, tenant.name, 480, 640), time.monotonic()
                )
            time.sleep(0.01)
        assert pipeline.set_tenants([stays]) == {}
        end = time.monotonic() + LONG_S
        while pipeline.view.leaving:
            assert time.monotonic() < end
            time.sleep(0.01)
        free.append(free_bytes())
    pipeline.stop(LONG_S)
    counts = pipeline.view.report("a", time.monotonic()).counts
    pipeline.close()
    assert errors == []
    assert counts.balanced
    # cuBLAS takes a workspace of 32 MB for each stream that it meets; the graphs of eight turns take far more.
    assert free[-1] >= free[3] - 256 * MB, "what models took is given back, again and again"
