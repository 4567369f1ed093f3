"""Each stage of a pipeline runs on its own cores, with all threads of its engine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from proposed_rivals import Camera, Proposed
from tenant_server import until
from two_branch_net import SIDE, two_roads
from two_stages import Stages

from split_infer_ros.autotuning import opening
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.database import Database
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.runtime.cores import ANY_CORE, Cores, StageCores
from split_infer_ros.runtime.device import CPU
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.improving.rivals import Rival, TakeImage
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.server.profiling.profiler import Effort, Profiler
from split_infer_ros.server.profiling.stored_profile import profile_model
from split_infer_ros.server.server import Server
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec

CHILD_S = 100  # a bound on the process that a test starts; the test's own bound lies above it
ALLOWED = frozenset(os.sched_getaffinity(0))
FIRST, LAST = frozenset([min(ALLOWED)]), frozenset([max(ALLOWED)])
SETTINGS = StageSettings(split_point="left", batch_size=2, drop_policy=DropPolicy.BLOCK)
IMAGES = [np.full((SIDE, SIDE, 3), value, np.uint8) for value in range(6)]
LEAST = Effort(rounds=1, warm_up=1, batches=2, seconds=0.0, runs=1, repeats=1, max_s=0.0)
pytestmark = pytest.mark.skipif(len(ALLOWED) < 2, reason="this process may use one core only")


def tasks() -> set[int]:
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}


def cores_by_name() -> dict[str, set[int]]:
    return {each.name: os.sched_getaffinity(each.native_id) for each in threading.enumerate() if each.native_id}


def cores_of(found: set[int]) -> set[frozenset[int]]:
    return {frozenset(os.sched_getaffinity(task)) for task in found & tasks()}


@pytest.mark.parametrize("engine", list(Engine))
@pytest.mark.parametrize("head", [Cores(LAST), ANY_CORE])
def test_all_threads_of_a_stage_have_its_cores(engine: Engine, head: Cores) -> None:
    of_head = head.numbers or ALLOWED
    settings = replace(SETTINGS, backbone_cores=str(min(ALLOWED)))
    model = two_roads(ExecutionConfig(engine=engine))
    before = tasks()
    with LocalPipeline(model, settings, head_cores=head) as pipeline:
        assert len(list(pipeline.run(IMAGES))) == len(IMAGES)
        named, others = cores_by_name(), cores_of(tasks() - before)
    assert named["dispatch"] == FIRST
    assert named["head"] == named["postprocess"] == of_head
    assert others == {FIRST, of_head}, "an engine's threads"
    assert os.sched_getaffinity(0) == ALLOWED


def test_without_cores_no_thread_is_bound() -> None:
    with LocalPipeline(two_roads(ExecutionConfig()), SETTINGS) as pipeline:
        list(pipeline.run(IMAGES))
        assert all(cores == ALLOWED for cores in cores_by_name().values())


def test_settings_change_on_the_cores() -> None:
    settings = replace(SETTINGS, backbone_cores=str(min(ALLOWED)))
    with LocalPipeline(two_roads(ExecutionConfig(engine=Engine.ONNXRUNTIME)), settings) as pipeline:
        before = tasks()
        pipeline.backbone.configure(replace(settings, split_point="right", batch_size=3))
        list(pipeline.run(IMAGES))
        assert cores_of(tasks() - before) <= {FIRST, ALLOWED}
        with pytest.raises(ConfigurationError, match="backbone_cores cannot change while models are loaded"):
            pipeline.backbone.configure(SETTINGS)
    assert os.sched_getaffinity(0) == ALLOWED


def test_cores_that_are_not_allowed_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"backbone_cores cannot be '8000'; this process may use"):
        LocalPipeline(two_roads(ExecutionConfig()), replace(SETTINGS, backbone_cores="8000"))


def test_tenants_have_cores_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = two_roads(ExecutionConfig())
    monkeypatch.setattr(opening, "load_streamable", lambda spec, weights: base.placed(CPU, spec.execution_config))
    delivered: list[set[int]] = []

    def deliver(tenant: str, origin: Origin, detections: Detections, labels: object) -> None:
        delivered.append(os.sched_getaffinity(0))

    cores = {"backbone_cores": str(min(ALLOWED)), "head_cores": str(max(ALLOWED))}
    settings = SharedSettings(device="cpu", engine="onnxruntime", drop_policy=DropPolicy.BLOCK, **cores)
    errors: list[Exception] = []
    database = Database(tmp_path / "costs")
    server = Server(
        *(settings, Limits(score_threshold=0.0), deliver, lambda who, error: errors.append(error)),
        device=CPU,
        open_model=opening.tenant_opener(database),
        database=database,
    )
    assert server.executor.num_lanes == 0, "a single core has no lanes"
    assert server.set_tenants([Tenant("front", "two_roads")]) == {}
    server.start()
    named = cores_by_name()
    server.stop(1.0)
    server.close()
    assert (named["dispatch"], named["head"]) == (FIRST, LAST)
    assert errors == []
    assert server.cores_fault == ""
    with pytest.raises(ConfigurationError, match="head_cores cannot be '8000'"):
        Server(
            *(replace(settings, head_cores="8000"), Limits(), deliver, lambda who, error: None),
            device=CPU,
            open_model=opening.tenant_opener(database),
        )


def test_a_profile_belongs_to_its_cores(tmp_path: Path) -> None:
    """Each stage is measured on its own cores, and records of other cores are not used."""
    model, database = two_roads(ExecutionConfig()), Database(tmp_path / "tuning.jsonl")
    cores = StageCores(Cores(FIRST), Cores(LAST))
    found = profile_model(Profiler(model, effort=LEAST, cores=cores), [2], database)
    assert found == profile_model(Profiler(model, cores=cores), [2], database, may_measure=False)
    for other in (StageCores(), StageCores(Cores(LAST), Cores(FIRST)), StageCores(Cores(FIRST))):
        with pytest.raises(ConfigurationError, match="was not measured yet"):
            profile_model(Profiler(model, cores=other), [2], database, may_measure=False)


WATCHED = """
import sys, threading, time
from test_stage_cores import FIRST, LAST, cores_by_name, load, run
finds = []
pipeline = load()
def watch():
    while not done.is_set():
        named = cores_by_name()
        finds.append((frozenset(named.get("dispatch", FIRST)), frozenset(named.get("head", LAST))))
        time.sleep(0.0005)
done = threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
run(pipeline)
done.set()
watcher.join()
assert len(finds) > 20, finds
assert set(finds) == {(FIRST, LAST)}, set(finds)
"""


def load() -> LocalPipeline:
    settings = replace(SETTINGS, split_point="features.7", backbone_cores=str(min(ALLOWED)))
    cores = StageCores.parse(
        settings.backbone_cores, str(max(ALLOWED))
    )  # as a node does it, before the model is loaded
    spec = ModelSpec("mobilenet_v2", "random", "cpu", execution_config=ExecutionConfig(engine=Engine.OPENVINO))
    return LocalPipeline(load_model(spec), settings, head_cores=cores.head)


def run(pipeline: LocalPipeline) -> None:
    with pipeline:
        assert len(list(pipeline.run([np.zeros((224, 224, 3), np.uint8)] * 60))) == 60


@pytest.mark.timeout(2 * CHILD_S)
def test_openvino_does_not_bind_threads_anew() -> None:
    """Its library for threads would bind them to all cores during each call. A new process has not loaded it yet."""
    subprocess.run(
        [sys.executable, "-c", WATCHED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        timeout=CHILD_S,
        check=True,
    )


class Asked(Proposed):
    """Proposes nothing, and notes the cores of the thread that asks."""

    def __init__(self) -> None:
        super().__init__()
        self.cores: list[frozenset[int]] = []

    def next(
        self, model: SplitModel, split_point: str, is_over: Callable[[], bool], take_image: TakeImage
    ) -> Rival | None:
        self.cores.append(frozenset(os.sched_getaffinity(0)))
        return super().next(model, split_point, is_over, take_image)


def test_rivals_are_sought_on_the_cores_of_the_backbone() -> None:
    """Also once settings have changed, by a thread that is not bound."""
    asked, settings = Asked(), StageSettings(drop_policy=DropPolicy.BLOCK, backbone_cores=str(min(ALLOWED)))
    stages = Stages(settings, rivals=asked)
    try:
        camera = Camera(stages)
        until(lambda: asked.asked == 1)
        stages.backbone.configure(replace(settings, batch_size=2))
        until(lambda: asked.asked == 2)
        camera.finish()
    finally:
        stages.close()
    assert asked.cores == [FIRST, FIRST]
