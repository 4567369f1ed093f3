"""Several models as one launch on a real GPU."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Limits
from split_infer_ros.pipeline.device import DeviceQueue
from split_infer_ros.pipeline.frame import Origin
from split_infer_ros.split.load import load_model
from split_infer_ros.tenancy.engine import Engine
from split_infer_ros.tenancy.forked_graphs import ForkedGraphs, Forks
from split_infer_ros.tenancy.measure import blank, measure
from split_infer_ros.tenancy.shared_pipeline import SharedPipeline
from split_infer_ros.tenancy.shared_settings import SharedSettings
from split_infer_ros.tenancy.tenant import Tenant
from split_infer_ros.tuning.database import Database

NAMES = ("alexnet", "resnet18", "squeezenet1_0")


def test_a_forked_graph_gives_what_each_model_gives_alone() -> None:
    models = {name: load_model(name, "random", "cuda:0") for name in NAMES}
    engine = Engine(torch.device("cuda", 0))
    engine.load({name: model.backbone("output") for name, model in models.items()}, dict.fromkeys(NAMES, 1.0))
    for counts, recorded in (((1, 1, 1), True), ((3, 2, 1), False), ((3, 2, 1), True), ((4, 2, 1), True)):
        inputs = {name: torch.rand_like(blank(models[name], count)) for name, count in zip(NAMES, counts, strict=True)}
        if recorded:
            engine.prepare(inputs)
        else:
            engine.prepare({NAMES[0]: inputs[NAMES[0]]})  # of the others each kernel is launched by itself
        found = engine.run(inputs)
        assert engine.graphs is not None
        assert len(engine.graphs) >= 1
        for name, images in inputs.items():
            with torch.inference_mode():
                expected = models[name].backbone("output")(images)
            for mine, other in zip(found[name], expected, strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)
    costs = measure(models, engine, sizes=(1, 2), rounds=2)
    assert all(seconds > 0 for seconds in costs.fused_s.values())
    engine.close()


def test_recorded_combinations_stay_within_their_memory() -> None:
    models = {name: load_model(name, "random", "cuda:0") for name in NAMES}
    device = torch.device("cuda", 0)
    queue = DeviceQueue(device)
    graphs = ForkedGraphs(Forks(device, queue), most_bytes=1)
    backbones = {name: model.backbone("output") for name, model in models.items()}
    for name in NAMES:
        with torch.inference_mode(), queue.work("execution"):
            graphs.prepare({name: backbones[name]}, {name: blank(models[name], 2)})
            graphs.run({name: backbones[name]}, {name: blank(models[name], 2)})
    assert graphs.bytes <= 1


@pytest.mark.parametrize("graphs", [True, False])
def test_tenants_get_their_own_results_from_a_gpu(tmp_path: Path, graphs: bool) -> None:
    delivered: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    errors: list[str] = []
    pipeline = SharedPipeline(
        SharedSettings(device="cuda:0", waiting=20, cuda_graphs=graphs),
        Limits(),
        lambda tenant, origin, detections, labels: delivered[tenant].append(origin.header),
        lambda name, error: errors.append(f"{name}: {error}"),
        Database(tmp_path / "tuning.jsonl"),
    )
    models = {"a": "shapes", "b": "squeezenet1_0", "c": "shapes"}
    assert pipeline.set_tenants([Tenant(name, model, "random") for name, model in models.items()]) == {}
    pipeline.start()
    for number in range(10):
        for name in models:
            pipeline.submit(name, Pixels.blank(), Origin(number, name, 480, 640), time.monotonic())
    pipeline.stop(60.0)
    assert errors == []
    assert delivered == {name: list(range(10)) for name in models}
    assert all(pipeline.report(name, time.monotonic()).counts.published == 10 for name in models)
    pipeline.close()
