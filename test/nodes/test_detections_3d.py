"""Point clouds are read from ROS messages. Objects in them become a message with a box and a header for each."""

from __future__ import annotations

import array

import numpy as np
from builtin_interfaces.msg import Time
from geometry_msgs.msg import Quaternion
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import PointCloud2, PointField
from std_msgs.msg import Header
from vision_msgs.msg import Detection3DArray

from split_infer_ros.models.detections import Detections
from split_infer_ros.nodes.detections_3d import detections_3d_message
from split_infer_ros.point_clouds.reading import DATATYPES, read_points

HEADER = Header(stamp=Time(sec=5, nanosec=7), frame_id="lidar")
NOTHING = Detections(np.zeros((0, 6), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))


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


def test_points_of_a_message_are_read() -> None:
    points = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    assert (read_points(cloud_message(points)) == points).all()


def test_objects_become_boxes() -> None:
    boxes = np.array([[1, 1, 0, 2, 3, 1], [9.1, -4, -1, 11.2, -3, 0.7]], np.float32)
    made = detections_3d_message(
        Detections(boxes, np.array([1, 0.5], np.float32), np.array([1, 0])), ["a", "b"], HEADER
    )
    received = deserialize_message(serialize_message(made), Detection3DArray)
    assert received == made
    assert received.header == HEADER
    names = ("b", "a"), (1.0, 0.5)
    for box, name, score, detection in zip(boxes.astype(float), *names, received.detections, strict=True):
        (result,) = detection.results
        assert detection.header == HEADER
        assert (result.hypothesis.class_id, result.hypothesis.score, detection.id) == (name, score, "")
        assert detection.bbox.center.orientation == Quaternion(x=0.0, y=0.0, z=0.0, w=1.0)
        position, size = detection.bbox.center.position, detection.bbox.size
        assert [position.x, position.y, position.z] == ((box[:3] + box[3:]) / 2).tolist()
        assert [size.x, size.y, size.z] == (box[3:] - box[:3]).tolist()
        assert result.pose.pose == detection.bbox.center
        assert not result.pose.covariance.any()


def test_a_cloud_without_objects_has_a_message_too() -> None:
    message = detections_3d_message(NOTHING, ["a"], HEADER)
    assert (message.header, message.detections) == (HEADER, [])
