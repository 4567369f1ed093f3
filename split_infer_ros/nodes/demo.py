"""Runs the pipeline on its built-in camera. Prints one line a second, and at the end figures and a verdict."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np
from rclpy.qos import QoSProfile
from rclpy.utilities import remove_ros_args
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from split_infer_ros.images.encodings import read_message
from split_infer_ros.models.detections import Detections
from split_infer_ros.models.evaluation import Matcher
from split_infer_ros.models.shapes_file import LABELS, NAME
from split_infer_ros.msg import PipelineStats
from split_infer_ros.nodes.backbone import BackboneNode
from split_infer_ros.nodes.camera import CameraNode
from split_infer_ros.nodes.conversions import corners
from split_infer_ros.nodes.intra_process import IntraProcessSubscription
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.parameters.table import NodeParameters
from split_infer_ros.nodes.pipeline import NODES
from split_infer_ros.nodes.process import run
from split_infer_ros.server.report import PipelineReport

NodeType = TypeVar("NodeType", bound=ManagedNode[Any])

MIN_F1 = 0.95
STANDARD_ERRORS = 3.0  # the demo fails only if F1 is this many standard errors below MIN_F1
DRAIN_S = 5.0
FIRST_PICTURE_S = 5.0  # how long the demo waits for a picture, if none has come in time
PICTURE_S = 1.0  # for how long the pipeline draws pictures at the end


class ViewerNode(ManagedNode[NodeParameters]):
    """Receives what the pipeline publishes. Compares detections with the truth, and keeps the last picture.

    Attributes:
        picture: the last image with its boxes; None before the first one.
        matcher: counts right and wrong detections. It counts nothing if the camera knows no truth.
    """

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__("viewer", NodeParameters, **node_arguments)
        self.picture: Image | None = None
        self.matcher = Matcher()
        self._truth: dict[tuple[int, int], Detection2DArray] = {}

    def activate(self) -> None:
        self._subscribe(Detection2DArray, "truth", self._receive_truth)
        self._subscribe(Detection2DArray, "detections", self._receive_detections)
        self._subscribe(PipelineStats, "stats", _print_stats)

    def subscribe_to_pictures(self) -> None:
        """Subscribes to ``detections/image``. The pipeline draws its pictures only from then on."""
        self._subscribe(Image, "detections/image", self._receive_picture)

    def _subscribe(self, message: type, topic: str, receive: Any) -> None:
        subscription = IntraProcessSubscription(self, message, topic, QoSProfile(depth=10), receive=receive)
        self.add_cleanup(subscription.destroy)

    def _receive_truth(self, truth: Detection2DArray) -> None:
        self._truth[_stamp(truth.header)] = truth

    def _receive_detections(self, found: Detection2DArray) -> None:
        stamp = _stamp(found.header)
        truth = self._truth.pop(stamp, None)
        for dropped in [other for other in self._truth if other < stamp]:
            del self._truth[dropped]  # the pipeline dropped that frame
        if truth is not None:
            known = _objects(truth)
            self.matcher.add(_objects(found), known.boxes, known.labels)

    def _receive_picture(self, picture: Image) -> None:
        self.picture = picture


def _stamp(header: Header) -> tuple[int, int]:
    return header.stamp.sec, header.stamp.nanosec


def _objects(message: Detection2DArray) -> Detections:
    """Returns the detections that a message holds."""
    boxes = np.array([corners(found) for found in message.detections], np.float32).reshape(-1, 4)
    hypotheses = [found.results[0].hypothesis for found in message.detections]
    scores = np.array([hypothesis.score for hypothesis in hypotheses], np.float32)
    labels = [LABELS.index(each.class_id) if each.class_id in LABELS else len(LABELS) for each in hypotheses]
    return Detections(boxes, scores, np.array(labels, np.int64))


def _print_stats(stats: PipelineStats) -> None:
    report = stats.report
    dropped = ", ".join(f"{entry.reason} {entry.count}" for entry in report.dropped) or "none"
    print(
        f"{stats.published_hz:6.1f} frames/s   latency p50 {report.latency_p50_ms:6.1f} ms, "
        f"p99 {report.latency_p99_ms:6.1f} ms   "
        f"busy: backbone {stats.backbone_busy:4.0%}, head {stats.head_busy:4.0%}   "
        f"slots {report.slots_used}/{report.pool_slots}   dropped: {dropped}",
        flush=True,
    )


def _milliseconds(seconds: float) -> float | None:
    return None if math.isnan(seconds) else round(1e3 * seconds, 2)


def summarise(report: PipelineReport, seconds: float, f1: float | None) -> dict[str, Any]:
    """Returns what the demo measured as a dictionary for JSON.

    Args:
        report: the pipeline's last report.
        seconds: how long the demo ran.
        f1: F1 of the detections against the truth; None without a truth.
    """
    counts = report.counts
    return {
        "received": counts.received,
        "published": counts.published,
        "dropped": dict(counts.dropped),
        "in_flight": counts.in_flight,
        "fps": round(counts.published / seconds, 2),
        "latency_ms": {"p50": _milliseconds(report.latency_p50_s), "p99": _milliseconds(report.latency_p99_s)},
        "f1": f1 if f1 is None else round(f1, 4),
    }


def _find(nodes: Sequence[ManagedNode[Any]], node_type: type[NodeType]) -> NodeType:
    return next(node for node in nodes if isinstance(node, node_type))


def run_demo(nodes: Sequence[ManagedNode[Any]], arguments: argparse.Namespace) -> int:
    """Lets frames flow for a while, stops the camera, and prints what was measured.

    Args:
        nodes: the running nodes: a camera, a backbone, a viewer and others.
        arguments: the demo's own arguments; see ``parse_arguments``.

    Returns:
        The exit code, which ``judge`` decides.
    """
    camera, backbone, viewer = _find(nodes, CameraNode), _find(nodes, BackboneNode), _find(nodes, ViewerNode)
    started = time.monotonic()
    time.sleep(max(0.0, arguments.seconds - PICTURE_S))
    viewer.subscribe_to_pictures()
    time.sleep(min(PICTURE_S, arguments.seconds))
    if arguments.picture:
        _wait_until(lambda: viewer.picture is not None, FIRST_PICTURE_S)
    camera.trigger_deactivate()
    seconds = time.monotonic() - started
    _wait_until(lambda: backbone.stage.ledger.counts().in_flight == 0, DRAIN_S)
    report = backbone.stage.report(time.monotonic())
    score = viewer.matcher.score()
    objects = score.true_positives + score.false_negatives if backbone.values.model.name == NAME else 0
    f1 = score.f1 if objects else None
    summary = json.dumps(summarise(report, seconds, f1), indent=2)
    print(summary)
    if arguments.json:
        arguments.json.write_text(summary + "\n")
    if arguments.picture:
        save_picture(viewer.picture, arguments.picture)
    return judge(report, f1, objects)


def _wait_until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


def judge(report: PipelineReport, f1: float | None, objects: int) -> int:
    """Judges the demo, and prints each fault.

    A fault is: a frame is not accounted for, no frame was published, or F1 is below ``MIN_F1``.

    Args:
        report: the pipeline's last report.
        f1: F1 of the detections against the truth; None without a truth.
        objects: the number of objects in the truth. With few objects, F1 may be below ``MIN_F1`` by chance.

    Returns:
        The exit code: 1 if there is a fault, else 0.
    """
    faults = []
    if not report.counts.balanced or report.counts.in_flight:
        faults.append(f"the ledger does not close: {report.counts}")
    if not report.counts.published:
        faults.append("no frame was published")
    if f1 is not None and f1 + STANDARD_ERRORS * math.sqrt(f1 * (1 - f1) / objects) < MIN_F1:
        faults.append(f"F1 is {f1:.3f} over {objects} objects, below {MIN_F1} by more than chance explains")
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if faults else 0


def save_picture(picture: Image | None, path: Path) -> None:
    """Writes a picture, with boxes drawn into it, to a file. Prints an error if that fails.

    Args:
        picture: the last picture that the pipeline published; None if none came, which is an error too.
        path: the file.
    """
    pixels = None if picture is None else read_message(picture).data
    if pixels is None or not cv2.imwrite(str(path), cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)):
        print(f"error: no picture was written to {path}", file=sys.stderr)
    else:
        print(f"picture: {path}")


def _file(name: str) -> Path:
    """Returns the path. Checks, before the demo starts, that a file can be written there at its end."""
    path = Path(name)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{name} cannot be written: name a file in a folder that exists")
    return path


def _picture(name: str) -> Path:
    if not cv2.haveImageWriter(name):
        raise argparse.ArgumentTypeError(f"{name} has no picture format that can be written: use .png or .jpg")
    return _file(name)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the demo's own arguments. None stands for those of the process, without the part after --ros-args."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long it runs (default: %(default)s)")
    parser.add_argument("--json", type=_file, metavar="FILE", help="write what was measured")
    parser.add_argument("--picture", type=_picture, metavar="FILE", help="write the last frame with its boxes")
    return parser.parse_args(remove_ros_args(sys.argv)[1:] if arguments is None else arguments)


def main() -> int:
    """Runs the demo with the arguments of this process. Returns the exit code."""
    arguments = parse_arguments()
    return run((ViewerNode, *NODES), lambda nodes: run_demo(nodes, arguments))


if __name__ == "__main__":
    sys.exit(main())
