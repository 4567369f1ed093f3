"""Executions that run behind, as on a GPU, without one."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from brightness_models import BAD, LONG_S, BrightModel, frame
from tenant_server import until
from torch import Tensor

from split_infer_ros.buffers import slot_memory
from split_infer_ros.buffers.memory import Memory, Place
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.measurements.database import Database
from split_infer_ros.memory_cost.memory_choice import MemoryAdvisor
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.runtime.streams import Fence, Stream
from split_infer_ros.server import executor as executor_module
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.callbacks import Callbacks
from split_infer_ros.server.execution.merge_runner import Compute, LaunchedExecution, StoreFeatures
from split_infer_ros.server.executor import Executor
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.improving.improve import Improve
from split_infer_ros.server.model_splits import ModelSplits
from split_infer_ros.server.opened_model import OpenedModel
from split_infer_ros.server.result_router import ResultRouter
from split_infer_ros.server.schedule.lane_scheduler import ScheduledExecution
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.server.tenant_state import TenantFrame, TenantState


class Later(Fence):
    """A point that is reached when told; or never, if the device failed."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.failure: Exception | None = None

    def wait(self) -> None:
        assert self.reached.wait(LONG_S)
        if self.failure is not None:
            raise self.failure


class SimulatedRunner:
    """Leaves features at once; says so later. It stands for a GPU that records executions."""

    is_asynchronous = True
    graphs = stream = object()

    def __init__(self, models: Mapping[str, BrightModel]) -> None:
        self.backbones = {name: model.backbone("default") for name, model in models.items()}
        self.marks: list[Later] = []
        self.after: list[Sequence[Fence]] = []
        self.breaks = False

    def set_threads(self, model: str) -> None:
        assert model in self.backbones

    def launch(
        self, inputs: Mapping[str, Tensor], leave: StoreFeatures, after: Sequence[Fence], compute: Compute, stack: None
    ) -> LaunchedExecution:
        if self.breaks:
            raise RuntimeError("the driver is gone")
        self.marks.append(Later())
        self.after.append(after)
        failed: dict[str, Exception] = {}
        for name, images in inputs.items():
            try:
                leave(name, self.backbones[name](images))
            except RuntimeError as error:
                failed[name] = error
        return LaunchedExecution(self.marks[-1], failed)


class Bench:
    """An executor between decisions that the test makes and heads that are real."""

    def __init__(self, path: Path) -> None:
        self.changed = threading.Condition()
        self.errors: list[str] = []
        self.delivered: list[tuple[str, int]] = []
        models = {"one": BrightModel("one"), "two": BrightModel("two", backbone_fails=True)}
        self.runner = SimulatedRunner(models)
        self.tenants = {name: TenantState(tenant=Tenant(name, name), model=name) for name in models}
        self.models: dict[str, ServedModel] = {}
        router = ResultRouter(
            changed=self.changed, tenants=self.tenants, models=self.models, deliver=self.deliver, on_error=self.note
        )
        callbacks = Callbacks(router.deliver, router.watch, self.note, lambda model: None)
        for name, model in models.items():
            settings = SharedSettings(device="cpu")
            opened = OpenedModel(model)
            self.models[name] = ServedModel(
                key=name,
                opened=opened,
                split=ModelSplits(threading.RLock(), lambda key, line: None).open(name, opened, Improve.NEVER),
                settings=settings,
                limits=Limits(),
                changed=self.changed,
                callbacks=callbacks,
                advisor=MemoryAdvisor(model.device, Database(path)),
            )
            self.models[name].open(settings, 0.0)
            self.models[name].start_head()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(executor_module, "MergeRunner", lambda *_, **__: self.runner)
            self.executor = Executor(self.changed, torch.device("cpu"))
        self.executor.start()

    def note(self, name: str, error: Exception) -> None:
        self.errors.append(f"{name}: {error}")

    def deliver(self, tenant: str, origin: Origin, detections: Detections, labels: Sequence[str]) -> None:
        self.delivered.append((tenant, round(detections.scores.item() * 255)))

    def execute(self, **values: int) -> list[Batch]:
        batches = []
        with self.changed:
            for name, value in values.items():
                pixels, origin = frame(value, name)
                tenant = self.tenants[name]
                frames = [TenantFrame(pixels, origin, tenant.ledger.receive(0.0), tenant)]
                batches.append(self.models[name].start_batch(frames.copy, 0.0))
            execution = self.executor.begin(ScheduledExecution(), batches, None)
        self.executor.run(execution)
        return batches

    def close(self) -> None:
        self.executor.stop()
        for model in self.models.values():
            model.close()
            assert not model.in_flight

    def dropped(self, name: str) -> dict[str, int]:
        counts = self.tenants[name].ledger.counts()
        assert counts.balanced
        assert counts.in_flight == 0
        return dict(counts.dropped)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "tuning.jsonl")


def test_the_next_is_launched_before_this_one_is_done(bench: Bench) -> None:
    bench.execute(one=1, two=2)
    bench.execute(one=3)
    until(lambda: len(bench.runner.marks) == 2)
    assert bench.delivered == []
    for mark in bench.runner.marks:
        mark.reached.set()
    bench.close()
    assert bench.executor.lanes.is_idle
    assert [value for tenant, value in bench.delivered if tenant == "one"] == [1, 3]
    assert sorted(bench.delivered) == [("one", 1), ("one", 3), ("two", 2)]
    assert bench.errors == []


def test_a_model_that_fails_costs_its_own_batch(bench: Bench) -> None:
    bench.execute(one=1, two=BAD)
    until(lambda: bench.runner.marks)
    bench.runner.marks[0].reached.set()
    bench.close()
    assert bench.delivered == [("one", 1)]
    assert bench.dropped("two") == {"backbone_error": 1}
    assert bench.errors == ["two: the backbone of two fails"]


def test_a_device_that_fails_costs_what_was_launched(bench: Bench) -> None:
    bench.execute(one=1)
    until(lambda: bench.runner.marks)
    bench.runner.marks[0].failure = RuntimeError("no such address")
    bench.runner.marks[0].reached.set()
    bench.runner.breaks = True
    bench.execute(one=2, two=3)
    bench.close()
    assert bench.delivered == []
    assert bench.dropped("one") == {"backbone_error": 2}
    assert bench.dropped("two") == {"backbone_error": 1}
    assert bench.executor.lanes.is_idle
    assert sorted(bench.errors) == ["one: no such address", "one: the driver is gone", "two: the driver is gone"]


def test_pages_are_mapped_beside_the_next_execution_and_before_the_next_of_that_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def managed(place: Place, nbytes: int) -> Memory:
        plain = torch.empty(nbytes, dtype=torch.uint8)
        return Memory(Policy.MANAGED, plain, plain)

    monkeypatch.setattr(slot_memory, "allocate_at", managed)
    bench = Bench(tmp_path / "tuning.jsonl")
    written = Batch.fetch
    marks: list[Fence | None] = []
    kept: list[bool] = []

    def fetch(batch: Batch, copies: Stream) -> Fence | None:
        assert bench.runner.marks, "not within the execution"
        fetched = written(batch, copies)
        kept.append(bool(batch.features))
        marks.append(fetched)
        return fetched

    monkeypatch.setattr(Batch, "fetch", fetch)
    (batch,) = bench.execute(one=1)
    until(lambda: len(marks) == 1)
    for number, (name, value) in enumerate((("two", 2), ("one", 3), ("two", 4))):
        bench.execute(**{name: value})
        until(lambda count=number + 2: len(marks) == count)  # type: ignore[misc]
    of_one, of_two, *_ = marks
    assert [of_one in after for after in bench.runner.after] == [False, False, True, False]
    assert [of_two in after for after in bench.runner.after] == [False, False, False, True]
    for mark in bench.runner.marks:
        mark.reached.set()
    bench.close()
    assert kept == [True] * 4, "until they are in the slot, and it is handed over"
    assert not batch.features
    assert sorted(bench.delivered) == [("one", 1), ("one", 3), ("two", 2), ("two", 4)]
    assert bench.errors == []


def test_an_execution_begins_when_the_one_before_has_ended(bench: Bench) -> None:
    (first,) = bench.execute(one=1)
    (second,) = bench.execute(one=2)
    until(lambda: len(bench.runner.marks) == 2)
    for mark in bench.runner.marks:
        mark.reached.set()
    bench.close()
    assert second.timeline.backbone_start == first.timeline.backbone_end > first.timeline.backbone_start
