"""Makes the messages of clusters in point clouds."""

from __future__ import annotations

from geometry_msgs.msg import Point, Pose, PoseWithCovariance, Vector3
from std_msgs.msg import Header
from vision_msgs.msg import BoundingBox3D, Detection3D, Detection3DArray, ObjectHypothesis, ObjectHypothesisWithPose

from split_infer_ros.point_clouds.point_groups import PointGroups

CLASS_ID = "object"  # clustering finds that there is something, and not what it is
SCORE = 1.0  # it knows no probabilities: each cluster was measured


def clusters_message(clusters: PointGroups, header: Header) -> Detection3DArray:
    """Returns the message of clusters, in their order. Every detection in it repeats the header.

    A box lies along the axes of the point cloud's frame, so its orientation is the identity. Its ``class_id`` is
    always ``object``, and its score always 1. The pose of its only hypothesis is the middle of the box. The covariance
    is 0, which means that it is unknown. ``id`` is empty, because clusters are not followed.

    Args:
        clusters: the clusters of one point cloud.
        header: the header of the point cloud.
    """
    hypothesis = ObjectHypothesis(class_id=CLASS_ID, score=SCORE)
    found = []
    for (x, y, z), (length, width, height) in zip(clusters.centres.tolist(), clusters.sizes.tolist(), strict=True):
        pose = Pose(position=Point(x=x, y=y, z=z))  # a new orientation is the identity
        found.append(
            Detection3D(
                header=header,
                results=[ObjectHypothesisWithPose(hypothesis=hypothesis, pose=PoseWithCovariance(pose=pose))],
                bbox=BoundingBox3D(center=pose, size=Vector3(x=length, y=width, z=height)),
            )
        )
    return Detection3DArray(header=header, detections=found)
