"""Tasks in the queue of a server, beside models: deadlines, faults and changes (paper 003, case II)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from brightness_models import LONG_S, BrightModel
from tenant_server import SETTINGS, Running, until

from split_infer_ros.errors import ConfigurationError, FrameError
from split_infer_ros.images.encodings import RGB, Pixels
from split_infer_ros.models.detections import Detections
from split_infer_ros.point_clouds.settings import ClusterSettings
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.opened_model import OpenedModel
from split_infer_ros.server.schedule.request import LatePolicy
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.tasks.opening import open_task

CAMERA = Tenant("camera", "one")
LIDAR = Tenant("lidar", "task:clusters")
OWN = Tenant("own", "task:user_tasks:Images")
CLOUD = np.array([[5, 0, 0]], np.float32) + np.linspace(0, 0.3, 30, dtype=np.float32)[:, None]


class Mixed(Running):
    """A server whose tenants have models or tasks."""

    def open_model(self, tenant: Tenant, settings: SharedSettings) -> OpenedModel:
        return super().open_model(tenant, settings) if tenant.model in self.models else open_task(tenant, settings)

    def deliver(self, tenant: str, origin: Origin, detections: Detections, labels: object) -> None:
        self.delivered[tenant].append((origin, detections))

    def scan(self, *clouds: np.ndarray) -> None:
        intake = self.pipeline.intake("lidar")
        for cloud in clouds:
            try:
                intake.check(cloud)
            except FrameError as error:
                intake.refuse(error, time.monotonic())
            else:
                intake.submit(cloud, Origin(None, "lidar", 0, 0), time.monotonic())

    def show(self, red: int) -> None:
        data = np.full((4, 6, 3), (red, 0, 255), np.uint8)
        self.pipeline.intake("own").submit(Pixels(data, RGB), Origin(None, "own", 4, 6), time.monotonic())


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Mixed]:
    run = Mixed(tmp_path / "tuning.jsonl", {"one": BrightModel("one")}, replace(SETTINGS, allow_user_code=True))
    yield run
    run.pipeline.stop(LONG_S)
    run.pipeline.close()
    assert all(ledger.counts().balanced for ledgers in run.ledgers.values() for ledger in ledgers)


def test_point_clouds_and_images_share_the_queue(mixed: Mixed) -> None:
    assert mixed.set(CAMERA, LIDAR, OWN) == {}
    mixed.pipeline.start()
    mixed.measured()
    assert mixed.pipeline.view.costs.whole.batch_s("task:clusters", 1) > 0, "its cost was not measured"
    for number in range(5):
        mixed.send("camera", number)
        mixed.scan(CLOUD + np.float32(number / 4))
        mixed.show(0)
        mixed.settled()
    assert [mixed.counts(name).published for name in ("camera", "lidar", "own")] == [5, 5, 5]
    for number, (_, found) in enumerate(mixed.delivered["lidar"]):
        expected = np.concatenate(((CLOUD + number / 4).min(0), (CLOUD + number / 4).max(0)))
        np.testing.assert_array_equal(found.boxes, expected[None])  # equal bits: these are coordinates of points
    assert mixed.pipeline.view.report("lidar", time.monotonic()).engine == "task"
    assert mixed.errors == []


def test_late_point_clouds_are_dropped_by_name(mixed: Mixed) -> None:
    late = replace(LIDAR, deadline_s=1e-6, when_late=LatePolicy.DROP)
    assert mixed.set(late) == {}
    mixed.pipeline.start()
    mixed.measured()
    mixed.scan(CLOUD, CLOUD)
    mixed.settled()
    assert mixed.counts("lidar").dropped == {"deadline": 2}


def test_faults_of_a_user_cost_its_own_frames(mixed: Mixed) -> None:
    assert mixed.set(CAMERA, OWN) == {}
    mixed.pipeline.start()
    mixed.measured()
    mixed.show(1)
    mixed.settled()
    mixed.send("camera", 7)
    mixed.show(0)
    mixed.settled()
    assert mixed.counts("own").dropped == {"backbone_error": 1}
    assert mixed.counts("own").published == mixed.counts("camera").published == 1
    assert [text for _, text in mixed.errors] == ["task:user_tasks:Images failed: ValueError: no such colour."]


def test_cloud_with_too_many_voxels_has_a_name(mixed: Mixed) -> None:
    clustering = replace(LIDAR.clustering, voxel_size_m=0.02, neighbour_distance_m=0.02)
    assert mixed.set(replace(LIDAR, clustering=clustering)) == {}
    mixed.pipeline.start()
    mixed.measured()
    scattered = np.random.default_rng(0).uniform((-60, -60, -1), (60, 60, 1), (300_000, 3)).astype(np.float32)
    mixed.scan(scattered, CLOUD)
    mixed.settled()
    assert mixed.counts("lidar").dropped == {"too_large": 1}
    assert mixed.counts("lidar").published == 1


def test_frames_of_another_kind_are_dropped_by_name(mixed: Mixed) -> None:
    """They came while the tenant got another model. They cost no frame of others."""
    assert mixed.set(CAMERA, LIDAR, OWN) == {}
    mixed.pipeline.start()
    mixed.measured()
    image = Pixels(np.zeros((4, 6, 3), np.uint8), RGB)
    mixed.pipeline.intake("lidar").check(image)
    mixed.pipeline.intake("lidar").submit(image, Origin(None, "lidar", 4, 6), time.monotonic())
    for name in ("own", "camera"):
        mixed.pipeline.intake(name).submit(CLOUD, Origin(None, name, 0, 0), time.monotonic())
    mixed.send("camera", 7)
    mixed.settled()
    assert [mixed.counts(name).dropped for name in ("lidar", "own", "camera")] == [{"removed": 1}] * 3
    assert mixed.counts("camera").published == 1


def test_settings_of_clusters_are_for_clusters() -> None:
    with pytest.raises(ConfigurationError, match="min_points can only be set for task:clusters, and the model is one"):
        replace(CAMERA, clustering=ClusterSettings(min_points=5))


def test_tenants_come_and_go_and_change_between_images_and_points(mixed: Mixed) -> None:
    assert mixed.set(LIDAR) == {}
    mixed.pipeline.start()
    mixed.scan(CLOUD)
    mixed.settled()
    assert mixed.set(replace(LIDAR, model="one")) == {}
    mixed.send("lidar", 3)
    mixed.settled()
    assert mixed.set(replace(LIDAR, model="task:user_tasks:Points")) == {}
    mixed.scan(CLOUD)
    mixed.settled()
    assert [found.boxes.shape for _, found in mixed.delivered["lidar"]] == [(1, 6), (1, 4), (1, 6)]
    assert mixed.set() == {}
    until(lambda: not mixed.pipeline.view.leaving)


@pytest.mark.parametrize("split_point", ["auto", "features.3"])
def test_the_split_point_of_the_others_does_not_matter(mixed: Mixed, split_point: str) -> None:
    mixed.pipeline.configure(replace(mixed.pipeline.settings, split_point=split_point))
    assert mixed.set(LIDAR) == {}
    assert mixed.pipeline.view.models["task:clusters"].plan.split_point.name == "output"


def test_tasks_that_cannot_be_are_refused_in_a_sentence(mixed: Mixed) -> None:
    tenants = {
        "a": Tenant("a", "task:cluster"),
        "b": replace(LIDAR, name="b", weights="random"),
        "c": replace(LIDAR, name="c", own_head=True),
        "d": Tenant("d", "task:user_tasks:fails"),
    }
    refused = {name: str(error) for name, error in mixed.set(*tenants.values()).items()}
    assert refused["a"].startswith("There is no task 'task:cluster'. There are: task:clusters; and task:module:factory")
    assert refused["b"] == "task:clusters has no weights, so weights cannot be 'random': take default."
    assert "has no head in another process" in refused["c"]
    assert "cannot be made (OSError: no model there)" in refused["d"]
