"""Makes the messages of objects in point clouds."""

from __future__ import annotations

from collections.abc import Sequence

from geometry_msgs.msg import Point, Pose, PoseWithCovariance, Vector3
from std_msgs.msg import Header
from vision_msgs.msg import BoundingBox3D, Detection3D, Detection3DArray, ObjectHypothesis, ObjectHypothesisWithPose

from split_infer_ros.models.detections import Detections, highest, lowest


def detections_3d_message(detections: Detections, labels: Sequence[str], header: Header) -> Detection3DArray:
    """Returns the message of objects in a point cloud, in their order. Every detection in it repeats the header.

    A box lies along the axes of the point cloud's frame, so its orientation is the identity. The pose of its only
    hypothesis is the middle of the box. Its covariance is 0, which means that it is unknown. ``id`` is empty, because
    objects are not followed.

    Args:
        detections: the objects, with boxes (n, 6) in metres.
        labels: the class name of each label, by index.
        header: the header of the point cloud.
    """
    low, high = lowest(detections.boxes).astype(float), highest(detections.boxes).astype(float)
    rows = zip(((low + high) / 2).tolist(), (high - low).tolist(), detections.scores, detections.labels, strict=True)
    found = []
    for (x, y, z), (length, width, height), score, label in rows:
        pose = Pose(position=Point(x=x, y=y, z=z))  # a new orientation is the identity
        hypothesis = ObjectHypothesis(class_id=labels[label], score=float(score))
        found.append(
            Detection3D(
                header=header,
                results=[ObjectHypothesisWithPose(hypothesis=hypothesis, pose=PoseWithCovariance(pose=pose))],
                bbox=BoundingBox3D(center=pose, size=Vector3(x=length, y=width, z=height)),
            )
        )
    return Detection3DArray(header=header, detections=found)
