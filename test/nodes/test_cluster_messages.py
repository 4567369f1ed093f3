"""Point clouds are read from ROS messages, and the message of clusters has a box with the cloud's header for each."""

from __future__ import annotations

import array

import numpy as np
from builtin_interfaces.msg import Time
from geometry_msgs.msg import Quaternion
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import PointCloud2, PointField
from std_msgs.msg import Header
from vision_msgs.msg import Detection3DArray

from split_infer_ros.nodes.cluster_messages import clusters_message
from split_infer_ros.point_clouds.clustering import Clusterer, ClusterSettings
from split_infer_ros.point_clouds.point_groups import PointGroups
from split_infer_ros.point_clouds.reading import DATATYPES, read_points

HEADER = Header(stamp=Time(sec=5, nanosec=7), frame_id="lidar")
NO_CLUSTERS = PointGroups.of_points(np.zeros((0, 3), np.float32))


def cloud_message(points: np.ndarray) -> PointCloud2:
    """Returns the message of float32 points, (number of points, 3), as rclpy receives it."""
    fields = [PointField(name=name, offset=4 * place, datatype=7, count=1) for place, name in enumerate("xyz")]
    data = array.array("B", points.astype("<f4").tobytes())
    width = len(points)
    made = PointCloud2(
        header=HEADER, height=1, width=width, fields=fields, point_step=12, row_step=12 * width, data=data
    )
    return deserialize_message(serialize_message(made), PointCloud2)


def test_datatypes_are_those_of_the_message() -> None:
    names = {"i": "INT", "u": "UINT", "f": "FLOAT"}
    expected = {getattr(PointField, f"{names[code[0]]}{8 * int(code[1])}"): code for code in DATATYPES.values()}
    assert expected == DATATYPES


def test_clusters_of_a_message_become_boxes() -> None:
    rng = np.random.default_rng(0)
    near, far = rng.uniform([1, 1, 0], [2, 3, 1], (50, 3)), rng.uniform([9, -4, -1], [11, -3, 1], (30, 3))
    message = cloud_message(np.concatenate((near, far)))
    settings = ClusterSettings(voxel_size_m=0.5, neighbour_distance_m=1.5)
    clusters = Clusterer(settings).find(read_points(message))
    made = clusters_message(clusters, message.header)
    received = deserialize_message(serialize_message(made), Detection3DArray)
    assert received == made
    assert received.header == HEADER
    for points, detection in zip((near, far), received.detections, strict=True):
        (result,) = detection.results
        rounded = points.astype(np.float32).astype(float)
        middle = (rounded.min(axis=0) + rounded.max(axis=0)) / 2
        assert detection.header == HEADER
        assert (result.hypothesis.class_id, result.hypothesis.score, detection.id) == ("object", 1.0, "")
        assert detection.bbox.center.orientation == Quaternion(x=0.0, y=0.0, z=0.0, w=1.0)
        position, size = detection.bbox.center.position, detection.bbox.size
        assert [position.x, position.y, position.z] == middle.tolist()
        assert [size.x, size.y, size.z] == np.ptp(rounded, axis=0).tolist()
        assert result.pose.pose == detection.bbox.center
        assert not result.pose.covariance.any()


def test_a_cloud_without_clusters_has_a_message_too() -> None:
    message = clusters_message(NO_CLUSTERS, HEADER)
    assert (message.header, message.detections) == (HEADER, [])
