"""What fails while nodes run is said, and what did not fail goes on."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rcl_interfaces.msg import Log
from rclpy.context import Context
from rclpy.qos import DurabilityPolicy, QoSProfile
from ros_pipeline import Pipeline
from ros_support import START_S, image, wait_until
from sensor_msgs.msg import Image
from std_msgs.msg import Header, String
from vision_msgs.msg import Detection2DArray

from split_infer_ros.models.detections import Detections
from split_infer_ros.models.plausibility import drop_impossible
from split_infer_ros.nodes import head as head_module
from split_infer_ros.nodes import image_input
from split_infer_ros.nodes import tenants as tenants_module
from split_infer_ros.nodes.backbone import BackboneNode
from split_infer_ros.nodes.camera import CameraNode
from split_infer_ros.nodes.endpoints import create_publisher
from split_infer_ros.nodes.process_exit import ThreadFailures
from split_infer_ros.nodes.result_publisher import ResultPublisher
from split_infer_ros.runtime.worker_thread import WorkerThread
from split_infer_ros.server import head_stage

LABELS = ("\ud83d\ude97", "half \ud83d", "plain")
READABLE = ["\U0001f697", "half \ufffd", "plain"]
LOGGED = QoSProfile(depth=1000, durability=DurabilityPolicy.TRANSIENT_LOCAL)

pytestmark = pytest.mark.timeout(4 * START_S)


@pytest.fixture
def lone(context: Context) -> Any:
    """A pipeline of a camera node alone, which sends nothing."""
    with Pipeline(context, camera={"source": "none"}) as found:
        yield found


def test_names_with_surrogates_stop_no_detection(lone: Pipeline) -> None:
    node = lone.nodes["camera"]
    results = ResultPublisher(node, has_images=False)
    received = lone.client.subscribe(Detection2DArray, "detections")
    results.set_model("model \ud83d\ude97", LABELS)
    boxes, scores = np.array([[1, 2, 3, 4]] * 3, np.float32), np.array([0.9, 0.8, 0.7], np.float32)
    found = Detections(boxes, scores, np.array([0, 1, 2]))
    origin = type("Origin", (), {"header": Header(frame_id="\ud83d")})()

    def sent() -> bool:
        results.publish(origin, found, LABELS)
        return bool(received)

    wait_until(sent, "detections")
    assert [each.results[0].hypothesis.class_id for each in received[0].detections] == READABLE
    assert lone.client.get("camera", "class_labels") == READABLE
    results.close()


def test_any_message_and_log_line_is_repaired(lone: Pipeline) -> None:
    node = lone.nodes["camera"]
    publisher = create_publisher(node, DiagnosticArray, "odd", QoSProfile(depth=10))
    received = lone.client.subscribe(DiagnosticArray, "odd")
    lines = lone.client.subscribe(Log, "/rosout", LOGGED)
    status = DiagnosticStatus(name=LABELS[0], message=LABELS[1], values=[KeyValue(key=LABELS[0], value=LABELS[1])])
    wait_until(lambda: publisher.get_subscription_count(), "the subscriber")
    publisher.publish(DiagnosticArray(status=[status]))
    received.wait_for(1)
    found = received[0].status[0]
    assert [found.name, found.message, found.values[0].key, found.values[0].value] == READABLE[:2] * 2
    for number in range(3):  # of one line of code, one after the other
        node.get_logger().warning(f"{number} {LABELS[0]}", throttle_duration_sec=1000.0)
    node.get_logger().error(LABELS[1])  # another line is not held back
    lines.wait_for_one(lambda line: line.msg == READABLE[1], "the error")
    assert [line.msg for line in lines if READABLE[0] in line.msg] == [f"0 {READABLE[0]}"]


def test_a_change_that_fails_is_refused_with_its_error(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = {"batch_size": 1}
    with Pipeline(context, head={"score_threshold": 0.0}, backbone=backbone) as pipeline:
        detections = pipeline.client.subscribe(Detection2DArray, "detections")
        images = pipeline.client.publisher(Image, "image")
        real = BackboneNode.apply

        def fail(node: BackboneNode, values: Any) -> None:
            raise ZeroDivisionError("odd \ud83d\ude97")

        monkeypatch.setattr(BackboneNode, "apply", fail)
        assert pipeline.client.set("backbone", batch_size=2) == ["ZeroDivisionError: odd \U0001f697"]
        assert pipeline.client.get("backbone", "batch_size") == 1
        monkeypatch.setattr(BackboneNode, "apply", real)
        assert pipeline.client.set("backbone", batch_size=2) == [""]
        images.publish(image())
        detections.wait_for(1)


def test_a_decoder_that_hangs_does_not_keep_a_head_from_its_end(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(decoded: Detections, num_labels: int) -> Any:
        hangs.set()
        assert goes_on.wait(START_S)
        return drop_impossible(decoded, num_labels)

    monkeypatch.setattr(head_module, "END_S", 0.05)
    with Pipeline(context, head={"score_threshold": 0.0}, backbone={"batch_size": 1}) as pipeline:
        lines = pipeline.client.subscribe(Log, "/rosout", LOGGED)
        images = pipeline.client.publisher(Image, "image")
        detections = pipeline.client.subscribe(Detection2DArray, "detections")
        monkeypatch.setattr(head_stage, "drop_impossible", hang)
        images.publish(image())
        assert hangs.wait(START_S)
        assert pipeline.client.transition("head", "deactivate")
        lines.wait_for_one(lambda line: "The head still works on a batch" in line.msg, "the warning")
        monkeypatch.setattr(head_stage, "drop_impossible", drop_impossible)
        goes_on.set()
        assert pipeline.client.transition("head", "activate")
        before = len(detections)
        wait_until(lambda: images.publish(image()) or len(detections) > before, "a detection")


def test_a_tenant_that_fails_leaves_the_others(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tenants_module.TenantTopics

    def fail(node: Any, name: str, *arguments: Any) -> Any:
        if name == "bad":
            raise ZeroDivisionError("odd")
        return real(node, name, *arguments)

    monkeypatch.setattr(tenants_module, "TenantTopics", fail)
    model = {f"tenant.{name}.model": "shapes" for name in ("good", "bad", "late")}
    weights = {f"tenant.{name}.weights": "none" for name in ("good", "bad", "late")}
    parameters = {"tenants": ["good", "bad"], "engine": "torch", **model, **weights}
    with Pipeline(context, tenants=parameters) as pipeline:
        lines = pipeline.client.subscribe(Log, "/rosout", LOGGED)
        lines.wait_for_one(lambda line: "Tenant bad does not run" in line.msg and "odd" in line.msg, "the fault")
        assert pipeline.client.set("tenants", tenants=["good", "bad", "late"]) == [""]
        for name in ("good", "late"):
            wait_until(lambda name=name: pipeline.client.node.count_publishers(f"{name}/detections"), name, START_S)


def test_a_source_that_fails_says_so(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(node: CameraNode, picture: Any) -> None:
        raise ZeroDivisionError("odd")

    monkeypatch.setattr(CameraNode, "_publish", fail)
    with Pipeline(context, camera={"width": 64, "height": 48}) as pipeline:
        lines = pipeline.client.subscribe(Log, "/rosout", LOGGED)
        lines.wait_for_one(lambda line: "ZeroDivisionError: odd" in line.msg, "the error")
        ended = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        names = pipeline.client.subscribe(String, "source_ended", ended)
        names.wait_for_one(lambda name: bool(name.data), "the end")


@pytest.mark.parametrize("error", [ZeroDivisionError("odd"), SystemExit(3)])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failed_thread_ends_the_process_with_a_reason(error: BaseException) -> None:
    def fail(work: int) -> None:
        raise error

    ended = threading.Event()
    failures = ThreadFailures()
    with failures.watch(ended.set):
        worker: WorkerThread[int] = WorkerThread("head", fail, lambda: None)
        worker.start()
        worker.put(1)
        assert ended.wait(START_S)
    assert failures.first == f"The thread 'head' has failed: {type(error).__name__}: {error}"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_threads_of_others_are_left_alone() -> None:
    failures = ThreadFailures()
    with failures.watch(lambda: pytest.fail("ended")):
        thread = threading.Thread(target=int, args=("odd",))
        thread.start()
        thread.join(START_S)
    assert not failures.first


def test_an_image_whose_reader_fails_is_counted(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **named: Any) -> None:
        raise ZeroDivisionError("odd")

    with Pipeline(context, head={}, backbone={}) as pipeline:
        images = pipeline.client.publisher(Image, "image")
        monkeypatch.setattr(image_input, "read_message", fail)
        images.publish(image())
        assert pipeline.settled(1).dropped == {"corrupt_image": 1}
