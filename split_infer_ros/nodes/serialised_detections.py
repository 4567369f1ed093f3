"""Writes detections as the bytes of a ``vision_msgs/Detection2DArray``, without a message object for each box.

The format is CDR, little-endian, as DDS carries it. Every number lies at a multiple of its size, counted from the end
of the first four bytes. The fields behind a box's label have the same length in all boxes. So one array holds them for
all boxes.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

import numpy as np
from builtin_interfaces.msg import Time
from rclpy.serialization import deserialize_message, serialize_message
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from split_infer_ros.models.detections import Detections
from split_infer_ros.nodes.conversions import detections_message
from split_infer_ros.runtime.text import encode_text

CDR_LITTLE_ENDIAN = b"\x00\x01\x00\x00"
FIRST_BOX = 3  # the index of the first box among the parts of a message
ONE_RESULT = struct.pack("<I", 1)
EMPTY_STRING = struct.pack("<I4x", 1)  # the length 1 (the NUL counts), the NUL, and padding up to the next box

# The fields behind a label, as numbers of 8 bytes: the score, the pose in space, the box, the empty ``id``.
_SCORE, _ORIENTATION_W, _BOX, _LENGTH = 0, 7, 44, 50
_TEMPLATE = np.zeros(_LENGTH, "<f8")
_TEMPLATE[_ORIENTATION_W] = 1.0
_TEMPLATE[-1:].view(np.uint8)[:] = np.frombuffer(EMPTY_STRING, np.uint8)
_ROW_BYTES = _TEMPLATE.nbytes
_PADDING_OF_ID = 3  # the last box's id is not padded


def serialise_detections(detections: Detections, labels: Sequence[str], header: Header) -> bytes:
    """Returns the bytes of the message that ``detections_message`` makes from these arguments. Padding bytes are 0."""
    stamp = struct.pack("<iI", header.stamp.sec, header.stamp.nanosec)
    head = stamp + _string(header.frame_id)
    head += bytes(-len(head) % 4)
    parts = [CDR_LITTLE_ENDIAN, head, struct.pack("<I", len(detections))]
    if not len(detections):
        return b"".join(parts)
    rows = _rows(detections).tobytes()
    found = detections.labels.tolist()
    beginnings = {label: head + ONE_RESULT + _string(labels[label]) for label in set(found)}
    padded = {label: _padded(beginning, 0) for label, beginning in beginnings.items()}
    for number, label in enumerate(found):
        parts += padded[label], rows[number * _ROW_BYTES : (number + 1) * _ROW_BYTES]
    parts[FIRST_BOX] = _padded(beginnings[found[0]], len(head) + 4)  # all other boxes begin at a multiple of 8
    parts[-1] = parts[-1][:-_PADDING_OF_ID]
    return b"".join(parts)


@functools.cache
def agrees_with_rclpy() -> bool:
    """Returns whether rclpy, with the middleware in use, writes messages in this module's format.

    A process tries that once, on two samples.

    Another byte order, another format of the middleware, or other fields of vision_msgs make a difference.
    """

    def agrees(sample: Detections) -> bool:
        message = detections_message(sample, labels, header)
        ours, theirs = serialise_detections(sample, labels, header), serialize_message(message)
        # Padding is not compared, because Fast DDS leaves old memory in it.
        is_alike = len(ours) == len(theirs) and ours[: len(CDR_LITTLE_ENDIAN)] == theirs[: len(CDR_LITTLE_ENDIAN)]
        return bool(is_alike and deserialize_message(ours, Detection2DArray) == message)

    labels = ("cat", "traffic light")
    header = Header(stamp=Time(sec=3, nanosec=5), frame_id="camera")
    boxes = np.array([[1, 2, 30, 50], [7, 8, 9, 11], [0, 0, 640, 480]], np.float32)
    found = Detections(boxes, np.array([0.9, 0.5, 0.25], np.float32), np.array([1, 0, 0]))
    return agrees(found) and agrees(Detections.empty())


def _rows(detections: Detections) -> np.ndarray:
    """Returns float64 (n, 50): the fields behind the label of each of n boxes."""
    rows = np.empty((len(detections), _LENGTH), "<f8")
    rows[:] = _TEMPLATE
    rows[:, _SCORE] = detections.scores
    boxes = detections.boxes.astype(np.float64)
    starts, ends = boxes[:, :2], boxes[:, 2:]
    with np.errstate(invalid="ignore"):  # boxes may be infinite
        rows[:, _BOX : _BOX + 2] = (starts + ends) / 2
        rows[:, _BOX + 3 : _BOX + 5] = ends - starts  # index 2 is the angle, which is 0
    return rows


def _string(text: str) -> bytes:
    encoded = encode_text(text.partition("\0")[0])  # ROS's strings end at the first NUL
    return struct.pack("<I", len(encoded) + 1) + encoded + b"\0"


def _padded(prefix: bytes, start: int) -> bytes:
    """Pads bytes that begin at ``start``, so that a number of 8 bytes may follow."""
    return prefix + bytes(-(start + len(prefix)) % 8)
