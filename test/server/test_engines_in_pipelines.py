"""Pipelines on ONNX Runtime and OpenVINO: torch's results, and no pass over images or features beside the engines'."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tenant_server import until, use_lanes
from torch import Tensor
from two_branch_net import CPU, PREPROCESS, SIDE, two_roads

from split_infer_ros.autotuning import opening
from split_infer_ros.buffers.host_arrays import Array
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.engines import precision_checks
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.onnxruntime_part import OnnxRuntimePart
from split_infer_ros.engines.openvino_part import OpenVinoPart
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import RGB, Pixels
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.letterbox import Letterbox
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.preprocessing.host_preprocessor import HostPreprocessor, PixelPreprocessor
from split_infer_ros.preprocessing.loaded_batch import LoadedBatch
from split_infer_ros.runtime.num_threads import engine_threads, max_threads
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.costs.cost_table import CostTable
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.server.server import Server
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.weight_streaming.residency import Residency

for package in ("onnx", "onnxscript", "onnxruntime", "openvino"):
    pytest.importorskip(package)

SETTINGS = StageSettings(split_point="left", batch_size=2, batch_timeout_s=0.2, drop_policy=DropPolicy.BLOCK)
SCORES = 1e-4  # a softmax of logits of about 1, which differ by rounding alone
Scores = npt.NDArray[np.float32]
ENGINES = {"onnxruntime": OnnxRuntimePart, "openvino": OpenVinoPart}


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cache folder, which these tests share: each part is exported once."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(path))
        yield path


def pictures() -> list[Any]:
    """Images of several sizes, some of the model's own."""
    random = torch.Generator().manual_seed(1)
    sides = (SIDE, SIDE, 40, 31, SIDE)
    return [
        torch.randint(256, (side, side + step % 2, 3), dtype=torch.uint8, generator=random).numpy()
        for step, side in enumerate(sides)
    ]


def scores(config: ExecutionConfig, settings: StageSettings = SETTINGS, preprocess: Preprocess = PREPROCESS) -> Scores:
    limits = Limits(score_threshold=0.0)
    with LocalPipeline(two_roads(config, preprocess), settings, limits=limits) as pipeline:
        results = list(pipeline.run(pictures()))
    assert [result.index for result in results] == list(range(len(pictures())))
    return np.stack([result.detections.scores[result.detections.labels.argsort()] for result in results])


@functools.cache
def expected_scores() -> Scores:
    """The scores of all pictures by torch's pipeline."""
    found = scores(ExecutionConfig())
    assert found.std(axis=0).max() > 10 * SCORES
    return found


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("split_point", ["input", "left", "output"])
def test_pipelines_give_torchs_results(name: str, split_point: str) -> None:
    settings = StageSettings(split_point=split_point, batch_size=2, batch_timeout_s=0.05, drop_policy=DropPolicy.BLOCK)
    found = scores(ExecutionConfig(engine=Engine(name)), settings)
    np.testing.assert_allclose(found, expected_scores(), rtol=0, atol=SCORES)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    "preprocess",
    [
        Preprocess(SIDE, SIDE, antialias=False, mean=(0.5, 0.25, 0.75), std=(0.5, 1.0, 0.25)),  # float32, not bytes
        Preprocess(SIDE, SIDE, opencv=True, bgr=True, mean=(0.5, 0.25, 0.75), std=(0.5, 1.0, 0.25)),
        Preprocess(SIDE, SIDE, letterbox=Letterbox(SIDE, SIDE, centred=True, colour=(114.0, 90.0, 60.0)), opencv=True),
    ],
    ids=["not rounded", "BGR", "letterbox"],
)
def test_images_are_normalised_in_each_way(name: str, preprocess: Preprocess) -> None:
    expected = scores(ExecutionConfig(), preprocess=preprocess)
    assert np.abs(expected - expected_scores()).max() > 10 * SCORES
    found = scores(ExecutionConfig(engine=Engine(name)), preprocess=preprocess)
    np.testing.assert_allclose(found, expected, rtol=0, atol=SCORES)


@pytest.mark.parametrize("engine", list(Engine))
def test_openvino_alone_normalises_images_itself(engine: Engine) -> None:
    with LocalPipeline(two_roads(ExecutionConfig(engine=engine)), SETTINGS) as pipeline:
        plan = pipeline.backbone.plan
        by_engine = engine is Engine.OPENVINO
        assert isinstance(plan.preprocessor, PixelPreprocessor if by_engine else HostPreprocessor)
        assert plan.preprocessor.bytes == SETTINGS.batch_size * 3 * SIDE * SIDE  # whole grey values
        if isinstance(plan.backbone, EnginePart):
            shape = (None, SIDE, SIDE, 3) if by_engine else (None, 3, SIDE, SIDE)
            assert [tensor.shape for tensor in plan.backbone.inputs] == [shape]


@pytest.mark.parametrize("name", ENGINES)
def test_engines_read_and_write_the_slots_own_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head reads the very addresses that the backbone wrote, and nothing was converted or copied in between."""
    kind = ENGINES[name]
    original = kind.run_prepared
    calls: list[tuple[EnginePart, list[int], list[int], int]] = []

    def record(self: EnginePart, outputs: Sequence[Array | None], values: Sequence[Array]) -> tuple[Array, ...]:
        results = original(self, outputs, values)
        places = [each.ctypes.data for each in values], [each.ctypes.data for each in results]
        calls.append((self, *places, len(values[0])))
        return results

    def refuse(*_: object) -> None:
        raise AssertionError("features were copied")

    monkeypatch.setattr(kind, "run_prepared", record)
    monkeypatch.setattr(SlotMemory, "write", refuse)
    split = two_roads(ExecutionConfig(engine=Engine(name)))
    head = split.head("left")
    with LocalPipeline(split, SETTINGS) as pipeline:
        backbone = pipeline.backbone.plan.backbone
        calls.clear()  # of the comparison with torch, and of the warm-up
        slots = pipeline.backbone.plan.pool.slots
        places = {
            tuple(view.ctypes.data for view in slots.views(slot, SETTINGS.batch_size))
            for slot in range(SETTINGS.pool_slots)
        }
        assert len(list(pipeline.run(pictures()))) == len(pictures())
    written = [tuple(outputs) for part, _, outputs, _ in calls if part is backbone]
    read = [tuple(inputs) for part, inputs, _, _ in calls if part is head]
    assert len(written) >= 3
    assert set(written) <= places
    assert set(read) <= places
    assert all(len(addresses) == 2 for addresses in written)
    assert isinstance(backbone, kind)
    assert isinstance(head, kind)
    assert backbone.conversions == head.conversions == 0


def test_a_head_on_another_engine_converts_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch leaves its features channels last; another engine's head converts both maps of each batch."""
    torch_model, head_model = two_roads(ExecutionConfig()), two_roads(ExecutionConfig(engine=Engine.ONNXRUNTIME))
    head = head_model.head("left")
    monkeypatch.setattr(torch_model.network, "head", lambda split_point, config: head)
    with LocalPipeline(torch_model, SETTINGS) as pipeline:
        results = list(pipeline.run(pictures()))
    assert len(results) == len(pictures())
    assert isinstance(head, EnginePart)
    assert head.conversions >= 2 * 3


@pytest.mark.parametrize("name", ENGINES)
def test_heads_are_compiled_before_the_first_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For its own number of threads, and for a single image and a full batch."""
    kind = ENGINES[name]
    original = kind.run_prepared
    runs: list[tuple[int, int]] = []

    def record(self: EnginePart, outputs: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        runs.append((len(tensors[0]), engine_threads()))
        return original(self, outputs, tensors)

    split = two_roads(ExecutionConfig(engine=Engine(name), threads=2))
    split.head("left"), split.backbone("left")
    monkeypatch.setattr(kind, "run_prepared", record)
    pipeline = LocalPipeline(split, SETTINGS, head_threads=1)
    of_head = [(count, threads) for count, threads in runs if threads == 1]  # the backbone has two
    assert sorted(of_head) == [(1, 1), (2, 1)]
    with pipeline:
        assert sorted(set(runs)) == [(1, 1), (1, 2), (2, 1), (2, 2)]  # the backbone's warm-up


@pytest.mark.parametrize("name", ["torch", *ENGINES])
def test_tenants_run_on_the_engine(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine writes the features of tenants into the slots itself; torch's are copied.

    Beside an engine, torch pre-processes on one thread.
    """
    base = two_roads(ExecutionConfig())
    writes: list[int] = []
    threads: set[tuple[int, int]] = set()
    original, load = SlotMemory.write, Batch.load

    def count(self: SlotMemory, slot: int, tensors: Sequence[Tensor], batched: bool = False) -> None:
        writes.append(slot)
        original(self, slot, tensors, batched)

    def note_threads(self: Batch) -> LoadedBatch:
        threads.add((torch.get_num_threads(), engine_threads()))
        return load(self)

    use_lanes(monkeypatch, False)
    monkeypatch.setattr(SlotMemory, "write", count)
    monkeypatch.setattr(Batch, "load", note_threads)
    monkeypatch.setattr(opening, "load_streamable", lambda spec, weights: base.placed(CPU, spec.execution_config))
    found: dict[int, Scores] = {}

    def deliver(tenant: str, origin: Origin, detections: Detections, labels: Sequence[str]) -> None:
        found[origin.header] = detections.scores[detections.labels.argsort()]

    errors: list[str] = []
    settings = SharedSettings(device="cpu", engine=name, batch_size=2, max_waiting=20)
    limits = Limits(score_threshold=0.0)
    database = Database(tmp_path / "costs")
    pipeline = Server(
        *(settings, limits, deliver, lambda who, error: errors.append(f"{who}: {error}")),
        device=CPU,
        open_model=opening.tenant_opener(database),
        database=database,
    )
    assert pipeline.set_tenants([Tenant("front", "two_roads")]) == {}
    (model,) = pipeline.view.models.values()
    assert isinstance(model.plan.preprocessor, PixelPreprocessor if name == "openvino" else HostPreprocessor)
    pipeline.start()
    try:
        for number, picture in enumerate(pictures()):
            pixels = Pixels(picture, RGB)
            pipeline.intake("front").submit(pixels, Origin(number, "front", *picture.shape[:2]), time.monotonic())
        until(lambda: len(found) == len(pictures()) or bool(errors))
    finally:
        pipeline.stop(10.0)
        pipeline.close()
    assert errors == []
    assert bool(writes) == (name == "torch")
    assert threads == {(max_threads() if name == "torch" else 1, max_threads())}
    np.testing.assert_allclose(np.stack([found[n] for n in sorted(found)]), expected_scores(), rtol=0, atol=SCORES)


def test_fused_tenants_normalise_images_within_their_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models of one network, whose costs say that they run together for little more than one of them alone."""
    database, config = Database(tmp_path / "costs"), ExecutionConfig(engine=Engine.OPENVINO)
    table = CostTable(Key.here("cpu"), database, max_batch_size=2, graphs=False)
    for key in ("one", "two"):
        model = two_roads(config)
        table.add_model(key, model, f"{model.split_point('default').name}, from pixels")
    while (combination := table.next_to_measure()) is not None:
        table.add_measured(combination, [0.01 + 0.001 * sum(count for _, count in combination)] * 3)
    table.save_costs()
    use_lanes(monkeypatch, False)
    monkeypatch.setattr(opening, "load_streamable", lambda spec, weights: two_roads(config))
    found: dict[str, list[Tensor]] = {"front": [], "rear": []}

    def deliver(tenant: str, origin: Origin, detections: Detections, labels: Sequence[str]) -> None:
        found[tenant].append(detections.scores[detections.labels.argsort()])

    errors: list[str] = []
    pipeline = Server(
        SharedSettings(device="cpu", engine="openvino", batch_size=2),
        *(Limits(score_threshold=0.0), deliver, lambda who, error: errors.append(f"{who}: {error}")),
        device=CPU,
        open_model=opening.tenant_opener(database),
        database=database,
    )
    assert pipeline.set_tenants([Tenant("front", "two_roads"), Tenant("rear", "two_roads", "random")]) == {}
    pipeline.start()
    try:
        until(lambda: pipeline.view.is_measured)
        for number, picture in enumerate(pictures()):
            with pipeline.held():
                for name in found:
                    pixels = Pixels(picture, RGB)
                    pipeline.intake(name).submit(pixels, Origin(number, name, *picture.shape[:2]), time.monotonic())
            until(lambda: not any(pipeline.view.ledger(name).counts().in_flight for name in found))
        reports = [pipeline.view.report(name, time.monotonic()) for name in found]
    finally:
        pipeline.stop(10.0)
        pipeline.close()
    assert errors == []
    assert [report.fused_batches for report in reports] == [len(pictures())] * 2
    for scores_of_tenant in found.values():
        np.testing.assert_allclose(np.stack(scores_of_tenant), expected_scores(), rtol=0, atol=SCORES)


@pytest.mark.parametrize(
    ("extensions", "wanted", "found", "noted"),
    [
        ({"avx512_bf16"}, "bf16 or fp32", "bf16", ""),
        (set(), "bf16 or fp32", "fp32", "two_roads runs in fp32: the processor has no instructions for bf16"),
        (set(), "bf16", "bf16", "two_roads runs in bf16: the processor has no instructions for bf16"),
    ],
)
def test_tenants_take_precisions_as_the_processor_does(
    extensions: set[str], wanted: str, found: str, noted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = two_roads(ExecutionConfig())
    monkeypatch.setattr(opening, "load_streamable", lambda spec, weights: base.placed(CPU, spec.execution_config))
    monkeypatch.setattr(precision_checks, "onednn_limit", str)
    monkeypatch.setattr(precision_checks, "cpu_extensions", lambda: frozenset(extensions))
    notes: list[str] = []
    settings = SharedSettings(device="cpu", engine="torch", precision=wanted, batch_size=1)
    database = Database(tmp_path / "c")
    pipeline = Server(
        *(settings, Limits(), lambda *result: None, lambda who, error: notes.append(str(error))),
        device=CPU,
        open_model=opening.tenant_opener(database),
        database=database,
    )
    try:
        assert pipeline.set_tenants([Tenant("front", "two_roads")]) == {}
        report = pipeline.view.report("front", 0.0)
        assert (report.engine, report.precision) == ("torch", found)
        assert any(noted in note for note in notes) if noted else notes == []
    finally:
        pipeline.close()


@pytest.mark.parametrize("name", ENGINES)
def test_streamed_weights_need_engine_torch(name: str) -> None:
    settings = StageSettings(split_point="left", weights_residency=Residency.ASYNCHRONOUS)
    pattern = rf"^weights_residency can only be resident on engine {name}, on which two_roads runs: streaming weights"
    with (
        pytest.raises(ConfigurationError, match=pattern),
        LocalPipeline(two_roads(ExecutionConfig(engine=Engine(name))), settings),
    ):
        pass
