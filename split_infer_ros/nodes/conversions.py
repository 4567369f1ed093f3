"""Conversions between ROS messages and this package's own types."""

from __future__ import annotations

import array
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time
from geometry_msgs.msg import PoseWithCovariance
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from vision_msgs.msg import (
    BoundingBox2D,
    Detection2D,
    Detection2DArray,
    ObjectHypothesis,
    ObjectHypothesisWithPose,
    Point2D,
    Pose2D,
)

from split_infer_ros.buffers.host_arrays import Floats, Integers
from split_infer_ros.models.detections import Detections
from split_infer_ros.msg import DropCount
from split_infer_ros.msg import PipelineReport as ReportMessage
from split_infer_ros.server.ledger import LedgerCounts
from split_infer_ros.server.report import PipelineReport
from split_infer_ros.telemetry.process_memory import process_memory

_NO_POSE = PoseWithCovariance()  # shared by all detections: a box in an image has no pose in space

# Fields of a pipeline's report. The message has the first under the same names, and the others in milliseconds.
_SAME = (
    *("time", "model", "device", "engine", "precision", "split_point", "failure", "batches", "merged_batches"),
    *("fused_batches", "stacked_batches", "backbone_busy_s", "head_busy_s", "memory", "memory_reason", "slots_used"),
    *("pool_bytes", "staging_bytes", "model_bytes", "batch_fill", "improvement"),
)
_TIMES = ("latency_p50", "latency_p99", "age_p50", "age_p99", "queueing_mean", "queueing_p99")
_STAGES = ("preprocess", "backbone", "hop", "head", "postprocess")  # medians


def image_message(image: np.ndarray, encoding: str, header: Header) -> Image:
    """Returns the ROS message of an image: a (height, width, channels) array in any dtype that the encoding names."""
    data = array.array("B")  # the only type that rclpy takes without checking each byte
    data.frombytes(memoryview(np.ascontiguousarray(image).data).cast("B"))
    height, width = image.shape[:2]
    return Image(header=header, height=height, width=width, encoding=encoding, step=image[0].nbytes, data=data)


def detections_message(detections: Detections, labels: Sequence[str], header: Header) -> Detection2DArray:
    """Returns the message of detections. Every detection in it repeats the header.

    Args:
        detections: the detections of one image.
        labels: the class name of each label, by index.
        header: the header of the source image.
    """
    rows = zip(detections.boxes.tolist(), detections.scores.tolist(), detections.labels.tolist(), strict=True)
    found = [_detection(box, labels[label], score, header) for box, score, label in rows]
    return Detection2DArray(header=header, detections=found)


def truth_message(boxes: Floats, indices: Integers, labels: Sequence[str], header: Header) -> Detection2DArray:
    """Returns the message of known objects. Each object is a detection with score 1.

    Args:
        boxes: float32 (number of objects, 4): left, top, right and bottom in pixels.
        indices: the label of each object, an index into ``labels``.
        labels: the class name of each label, by index.
        header: the header of the image that shows the objects.
    """
    return detections_message(Detections(boxes, np.ones(len(boxes), np.float32), indices), labels, header)


def _detection(box: list[float], label: str, score: float, header: Header) -> Detection2D:
    left, top, right, bottom = box
    hypothesis = ObjectHypothesisWithPose(hypothesis=ObjectHypothesis(class_id=label, score=score), pose=_NO_POSE)
    centre = Pose2D(position=Point2D(x=(left + right) / 2, y=(top + bottom) / 2))
    return Detection2D(
        header=header, results=[hypothesis], bbox=BoundingBox2D(center=centre, size_x=right - left, size_y=bottom - top)
    )


def corners(detection: Detection2D) -> tuple[float, float, float, float]:
    """Returns left, top, right and bottom of a detection's box, in pixels."""
    centre = detection.bbox.center.position
    half_width, half_height = detection.bbox.size_x / 2, detection.bbox.size_y / 2
    return centre.x - half_width, centre.y - half_height, centre.x + half_width, centre.y + half_height


def report_message(report: PipelineReport, stamp: Time, **fields: Any) -> ReportMessage:
    """Returns the message of a pipeline's report. The message also says how much memory this process uses now.

    Args:
        report: the report.
        stamp: the present time of the system clock.
        fields: further fields of the message, such as ``tenant`` and ``state``.
    """
    settings, counts, weights = report.settings, report.counts, report.weights
    memory = process_memory()
    return ReportMessage(
        stamp=stamp,
        **fields,
        **{name: getattr(report, name) for name in _SAME},
        **{f"{name}_ms": 1e3 * getattr(report, f"{name}_s") for name in _TIMES},
        **{f"{stage}_p50_ms": 1e3 * getattr(report, f"{stage}_s") for stage in _STAGES},
        batch_size=settings.batch_size,
        batch_timeout_ms=1e3 * settings.batch_timeout_s,
        drop_policy=settings.drop_policy.value,
        received=counts.received,
        published=counts.published,
        in_flight=counts.in_flight,
        dropped=_by_reason(counts.dropped),
        left_out=_by_reason(report.left_out),
        pool_slots=settings.pool_slots,
        resident_bytes=memory.resident_bytes,
        anonymous_bytes=memory.anonymous_bytes,
        weights_residency=settings.weights_residency.value,
        weights_bytes=weights.memory_bytes if weights else 0,
        weights_read_mb_s=weights.bandwidth / 1e6 if weights else math.nan,
        weights_stalled_s=weights.stalled_s if weights else 0.0,
    )


def _by_reason(counts: Mapping[str, int]) -> list[DropCount]:
    return [DropCount(reason=reason, count=count) for reason, count in sorted(counts.items())]


def counts_of(message: ReportMessage) -> LedgerCounts:
    """Returns the ledger's counts that a report message holds."""
    dropped = {entry.reason: entry.count for entry in message.dropped}
    return LedgerCounts(message.received, message.published, message.in_flight, dropped)
