"""Point clouds through the node ``tenants``: objects come out, and every fault has a name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rclpy.context import Context
from ros_pipeline import Pipeline
from ros_support import START_S, wait_until
from sensor_msgs.msg import PointCloud2, PointField
from std_msgs.msg import Header
from vision_msgs.msg import Detection3DArray

pytest.importorskip("scipy")

CLOUD = np.array([[5, 0, 0]], np.float32) + np.linspace(0, 0.3, 30, dtype=np.float32)[:, None]


def message(points: np.ndarray, **changes: object) -> PointCloud2:
    """Returns the message of points (n, 3), with changed fields."""
    fields = [PointField(name=name, offset=4 * index, datatype=7, count=1) for index, name in enumerate("xyz")]
    values = points.astype("<f4").tobytes()
    facts = {"height": 1, "width": len(points), "fields": fields, "point_step": 12, "row_step": 12 * len(points)}
    return PointCloud2(header=Header(frame_id="lidar"), **{**facts, "data": values, **changes})


@pytest.fixture
def pipeline(context: Context, tmp_path: Path) -> Iterator[Pipeline]:
    tenants = {"tenants": ["lidar"], "tenant.lidar.model": "task:clusters", "image_depth": 100}
    tenants |= {"tuning_database": str(tmp_path / "tuning.jsonl"), "image_reliability": "reliable"}
    with Pipeline(context, tenants=tenants) as found:
        yield found


def settled(pipeline: Pipeline, received: int) -> dict[str, int]:
    """Returns the dropped frames by reason, once so many came and none is in flight."""
    view = pipeline.nodes["tenants"].pipeline.view

    def counts() -> object:
        found = view.report("lidar", time.monotonic()).counts
        assert found.balanced
        return found if found.received >= received and not found.in_flight else None

    return dict(wait_until(counts, f"{received} clouds settled", START_S).dropped)


def test_objects_of_a_cloud_are_published(pipeline: Pipeline) -> None:
    found = pipeline.client.subscribe(Detection3DArray, "lidar/detections_3d")
    clouds = pipeline.client.publisher(PointCloud2, "lidar/points")
    clouds.publish(message(CLOUD))
    (detections,) = found.wait_for(1)
    assert detections.header.frame_id == "lidar"
    (detection,) = detections.detections
    assert detection.results[0].hypothesis.class_id == "object"
    assert detection.results[0].hypothesis.score == 1.0
    centre, size = detection.bbox.center.position, detection.bbox.size
    assert [centre.x, centre.y, centre.z] == pytest.approx([5.15, 0.15, 0.15], abs=1e-6)  # of float32 coordinates
    assert [size.x, size.y, size.z] == pytest.approx([0.3, 0.3, 0.3], abs=1e-6)
    assert detection.bbox.center.orientation.w == 1.0


def test_each_fault_of_a_cloud_has_a_name(pipeline: Pipeline) -> None:
    clouds = pipeline.client.publisher(PointCloud2, "lidar/points")
    faults = {
        "empty_cloud": [message(CLOUD[:0]), message(np.full((4, 3), np.nan))],
        "bad_fields": [message(CLOUD, fields=[])],
        "truncated_cloud": [message(CLOUD, data=b"\0" * 12)],
        "bad_step": [message(CLOUD, row_step=12)],
        "too_large": [message(CLOUD, height=2**16, width=2**16)],
    }
    for messages in faults.values():
        for each in messages:
            clouds.publish(each)
    clouds.publish(message(CLOUD))
    sent = sum(map(len, faults.values())) + 1
    assert settled(pipeline, sent) == {reason: len(messages) for reason, messages in faults.items()}


def test_tenant_changes_its_settings_topic_and_task(pipeline: Pipeline) -> None:
    client = pipeline.client
    assert client.set_all("tenants", **{"tenant.lidar.min_points": 31}) == ""
    found = client.subscribe(Detection3DArray, "lidar/detections_3d")
    clouds = client.publisher(PointCloud2, "lidar/points")
    view = pipeline.nodes["tenants"].pipeline.view
    wait_until(lambda: list(view.models) == ["task:clusters with min_points 31"], "the new settings alone", START_S)
    clouds.publish(message(CLOUD))
    assert found.wait_for(1)[0].detections == []
    assert client.set_all("tenants", **{"tenant.lidar.points_topic": "velodyne"}) == ""
    client.publisher(PointCloud2, "velodyne").publish(message(np.concatenate((CLOUD, CLOUD))))
    assert len(found.wait_for(2)[1].detections) == 1


def test_values_that_contradict_each_other_change_nothing(pipeline: Pipeline) -> None:
    refusal = pipeline.client.set_all("tenants", **{"tenant.lidar.neighbour_distance_m": 0.05})
    assert "neighbour_distance_m cannot be 0.05 for voxels of 0.2 m" in refusal
