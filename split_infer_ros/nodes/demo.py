"""The pipeline on its built-in camera, watched: one line a second, at the end a picture, figures and a verdict."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import cv2
import torch
from rclpy.qos import QoSProfile
from rclpy.utilities import remove_ros_args
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from split_infer_ros.models.detections import Detections
from split_infer_ros.models.evaluation import Matcher
from split_infer_ros.models.shapes import LABELS
from split_infer_ros.msg import PipelineStats
from split_infer_ros.nodes.backbone import BackboneNode
from split_infer_ros.nodes.camera import CameraNode
from split_infer_ros.nodes.conversions import corners, pixels_of
from split_infer_ros.nodes.intra_process import IntraProcessSubscription
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.parameters.table import NodeParameters
from split_infer_ros.nodes.pipeline import NODES
from split_infer_ros.nodes.process import run
from split_infer_ros.pipeline.report import PipelineReport

Kind = TypeVar("Kind", bound=ManagedNode)

F1_WANTED = 0.95
CERTAIN = 3.0  # standard errors
DRAIN_S = 5.0
PICTURE_S = 1.0


class ViewerNode(ManagedNode):
    """Hears what the pipeline publishes, compares it with the truth and remembers the last picture."""

    def __init__(self, **node_arguments: Any) -> None:
        super().__init__("viewer", NodeParameters, **node_arguments)
        self.picture: Image | None = None
        self.matcher = Matcher()
        self._truth: dict[tuple[int, int], Detection2DArray] = {}

    def begin(self) -> None:
        self._listen(Detection2DArray, "truth", self._hear_truth)
        self._listen(Detection2DArray, "detections", self._hear_detections)
        self._listen(PipelineStats, "stats", _print_line)

    def keep_pictures(self) -> None:
        """Begin to look at ``detections/image``, which is drawn from now on."""
        self._listen(Image, "detections/image", self._hear_picture)

    def _listen(self, message: type, topic: str, receive: Any) -> None:
        subscription = IntraProcessSubscription(self, message, topic, QoSProfile(depth=10), receive)
        self.on_tear_down(subscription.destroy)

    def _hear_truth(self, truth: Detection2DArray) -> None:
        self._truth[_stamp(truth.header)] = truth

    def _hear_detections(self, found: Detection2DArray) -> None:
        stamp = _stamp(found.header)
        truth = self._truth.pop(stamp, None)
        for passed in [other for other in self._truth if other < stamp]:
            del self._truth[passed]  # dropped on its way
        if truth is not None:
            boxes, labels, _ = _tensors(truth)
            found_boxes, found_labels, scores = _tensors(found)
            self.matcher.add(Detections(found_boxes, scores, found_labels), boxes, labels)

    def _hear_picture(self, picture: Image) -> None:
        self.picture = picture


def _stamp(header: Header) -> tuple[int, int]:
    return header.stamp.sec, header.stamp.nanosec


def _tensors(message: Detection2DArray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Boxes (n, 4), labels (n,) and scores (n,) of a message."""
    boxes = torch.tensor([corners(found) for found in message.detections]).reshape(-1, 4)
    hypotheses = [found.results[0].hypothesis for found in message.detections]
    labels = torch.tensor([_label(hypothesis.class_id) for hypothesis in hypotheses], dtype=torch.int64)
    return boxes, labels, torch.tensor([hypothesis.score for hypothesis in hypotheses])


def _label(name: str) -> int:
    return LABELS.index(name) if name in LABELS else len(LABELS)


def _print_line(stats: PipelineStats) -> None:
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


def measured(report: PipelineReport, seconds: float, f1: float | None) -> dict[str, Any]:
    """What the demo found, in the form in which it is written."""
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


def _find(nodes: Sequence[ManagedNode], kind: type[Kind]) -> Kind:
    return next(node for node in nodes if isinstance(node, kind))


def watch(nodes: Sequence[ManagedNode], arguments: argparse.Namespace) -> int:
    """Let frames flow for a while, stop the camera, account for every frame; returns the exit code."""
    camera, backbone, viewer = _find(nodes, CameraNode), _find(nodes, BackboneNode), _find(nodes, ViewerNode)
    started = time.monotonic()
    time.sleep(max(0.0, arguments.seconds - PICTURE_S))
    viewer.keep_pictures()
    time.sleep(min(PICTURE_S, arguments.seconds))
    camera.trigger_deactivate()
    seconds = time.monotonic() - started
    while backbone.stage.ledger.counts().in_flight and time.monotonic() < started + seconds + DRAIN_S:
        time.sleep(0.01)
    report = backbone.stage.report(time.monotonic())
    score = viewer.matcher.score()
    objects = score.true_positives + score.false_negatives if backbone.values.model == "shapes" else 0
    f1 = score.f1 if objects else None
    result = measured(report, seconds, f1)
    print(json.dumps(result, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    if arguments.picture:
        save_picture(viewer.picture, arguments.picture)
    return verdict(report, f1, objects)


def verdict(report: PipelineReport, f1: float | None, objects: int) -> int:
    """0 if every frame is accounted for and what is known to be there was found; else says what is wrong.

    Args:
        report: the pipeline's.
        f1: of the detections against the truth; None where there is none.
        objects: that the truth had. Among few of them F1 may be below its goal by chance.
    """
    faults = []
    if not report.counts.balanced or report.counts.in_flight:
        faults.append(f"the ledger does not close: {report.counts}")
    if not report.counts.published:
        faults.append("no frame was published")
    if f1 is not None and f1 + CERTAIN * math.sqrt(f1 * (1 - f1) / objects) < F1_WANTED:
        faults.append(f"F1 is {f1:.3f} over {objects} objects, below {F1_WANTED} by more than chance explains")
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if faults else 0


def save_picture(picture: Image | None, path: Path) -> None:
    """Write the last picture with its boxes."""
    if picture is None or not cv2.imwrite(str(path), cv2.cvtColor(pixels_of(picture).data.numpy(), cv2.COLOR_RGB2BGR)):
        print(f"error: no picture was written to {path}", file=sys.stderr)
    else:
        print(f"picture: {path}")


def _file(name: str) -> Path:
    """Where something is to be written at the end, which had better be known at the start."""
    path = Path(name)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{name} cannot be written: take a file in a folder that exists")
    return path


def _picture(name: str) -> Path:
    if not cv2.haveImageWriter(name):
        raise argparse.ArgumentTypeError(f"{name} is of no kind of picture that can be written: take .png or .jpg")
    return _file(name)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The demo's own arguments; those after --ros-args are ROS's."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long (default: %(default)s)")
    parser.add_argument("--json", type=_file, metavar="FILE", help="write what was measured")
    parser.add_argument("--picture", type=_picture, metavar="FILE", help="write the last frame with its boxes")
    return parser.parse_args(remove_ros_args(sys.argv)[1:] if arguments is None else arguments)


def main() -> int:
    """Run the demo."""
    arguments = parse()
    return run((ViewerNode, *NODES), lambda nodes: watch(nodes, arguments))


if __name__ == "__main__":
    sys.exit(main())
