"""The node ``tenants``: cameras and models are added, changed and removed while the others run."""

from __future__ import annotations

import heapq
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.context import Context
from rclpy.qos import DurabilityPolicy, QoSProfile
from ros_pipeline import Pipeline
from ros_support import START_S, WAIT_S, Received, wait_until
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from std_srvs.srv import SetBool
from tenant_nets import SHADES
from vision_msgs.msg import Detection2DArray, VisionInfo

from split_infer_ros.msg import PipelineReport, PipelineStats
from split_infer_ros.nodes.result_publisher import ResultPublisher
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.ledger import LedgerCounts
from split_infer_ros.server.schedule.request import LatePolicy

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
STALL_S = 0.5  # an image that is later than this was held up by a stall of the machine
RED, GREEN, BLUE = (f"tenant_nets:{name}" for name in ("red", "green", "blue"))


def shown(shade: int, stamp: int = 0, frame_id: str = "", height: int = 48, width: int = 64) -> Image:
    """Returns an image of one shade."""
    header = Header(stamp=Time(sec=stamp), frame_id=frame_id)
    size = 3 * width * height
    return Image(header=header, height=height, width=width, encoding="rgb8", step=3 * width, data=bytes([shade]) * size)


def label_of(message: Detection2DArray) -> str:
    """Returns the label that the model found."""
    return str(message.detections[0].results[0].hypothesis.class_id)


def counts(pipeline: Pipeline, tenant: str) -> LedgerCounts:
    """Returns a tenant's counts, which must close at every instant."""
    found = pipeline.nodes["tenants"].pipeline.view.report(tenant, time.monotonic()).counts
    assert found.balanced, found
    return found


def settled(pipeline: Pipeline, tenant: str, received: int) -> LedgerCounts:
    """Returns the counts once so many frames came in and none is in flight."""
    wait_until(
        lambda: (now := counts(pipeline, tenant)).received >= received and not now.in_flight,
        lambda: f"{received} frames of {tenant} settled: {counts(pipeline, tenant)}",
        START_S,
    )
    return counts(pipeline, tenant)


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Parameters that allow the test's own models. Their costs are measured once for the whole file."""
    database = tmp_path_factory.mktemp("tuning") / "tuning.jsonl"
    return {"allow_user_code": True, "tuning_database": str(database), "image_reliability": "reliable"}


@pytest.fixture(scope="module")
def pipeline(context: Context, costs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """A pipeline with a red and a green tenant, which every test restores."""
    tenants = {**costs, "tenants": ["front", "rear"], "tenant.front.model": RED, "tenant.rear.model": GREEN}
    tenants |= {"image_depth": 500, "tenant.rear.image_topic": "behind"}
    tenants |= {"trace": str(tmp_path_factory.mktemp("trace") / "trace.json")}
    with Pipeline(context, stats={"period_s": 0.2, "camera_timeout_s": 0.0}, tenants=tenants) as found:
        yield found


@pytest.fixture
def again(pipeline: Pipeline) -> Iterator[None]:
    """Restores the two tenants after a test."""
    yield
    first = {"image_topic": "", "model": RED, "deadline_ms": 0.0, "when_late": "finish"}
    rows = {f"tenant.front.{name}": value for name, value in first.items()}
    assert pipeline.client.set_all("tenants", tenants=["front", "rear"], **rows) == ""
    wait_until(lambda: tenants_of(pipeline) == {"front": RED, "rear": GREEN}, "the first tenants")
    wait_until(lambda: set(pipeline.nodes["tenants"].running) == {"front", "rear"}, "their topics")


def tenants_of(pipeline: Pipeline) -> dict[str, str]:
    """Returns the models of the running tenants by name."""
    return {name: tenant.model for name, tenant in pipeline.nodes["tenants"].pipeline.view.tenants.items()}


@pytest.fixture(scope="module")
def diagnostics(pipeline: Pipeline) -> Callable[[str, bytes, str], DiagnosticStatus]:
    """A function that waits for a tenant's status of a given level and message."""
    arrays = pipeline.client.subscribe(DiagnosticArray, "/diagnostics")

    def find(tenant: str, level: bytes, words: str) -> DiagnosticStatus:
        arrays.clear()
        name = f"{pipeline.namespace[1:]}/pipeline/{tenant}".rstrip("/")

        def fitting(array: DiagnosticArray) -> list[DiagnosticStatus]:
            return [
                status
                for status in array.status
                if (status.name, status.level) == (name, level) and words in status.message
            ]

        return fitting(arrays.wait_for_one(lambda array: bool(fitting(array)), f"{name}: {words}"))[0]

    return find


def test_each_tenant_has_its_own_topics_and_diagnostics(
    pipeline: Pipeline, diagnostics: Callable[..., DiagnosticStatus]
) -> None:
    client = pipeline.client
    for name, topic, kind, model in (("front", "front/image", "red", RED), ("rear", "behind", "green", GREEN)):
        detections = client.subscribe(Detection2DArray, f"{name}/detections")
        message = shown(SHADES[2], 7, f"{name} lens", height=30)
        client.publisher(Image, topic).publish(message)
        (found,) = detections.wait_for(1)
        assert found.header == message.header
        assert found.detections[0].header == message.header
        assert label_of(found) == f"{kind}{SHADES[2]}"
        (info,) = client.subscribe(VisionInfo, f"{name}/vision_info", LATCHED).wait_for(1)
        node, parameter = info.database_location.rsplit("/", 1)
        assert (info.method, node) == (model, f"{pipeline.namespace}/tenants")
        assert client.get("tenants", parameter) == [f"{kind}{shade}" for shade in SHADES]
        assert "read-only" in client.set("tenants", **{parameter: ["other"]})[0]
        stats = client.subscribe(PipelineStats, f"{name}/stats").wait_for_one(
            lambda stats: stats.report.published, "a frame"
        )
        assert (stats.tenant, stats.report.tenant) == (name, name)
        facts = {entry.key: entry.value for entry in diagnostics(name, DiagnosticStatus.OK, "Frames flow").values}
        assert int(facts["published"]) == counts(pipeline, name).published
    assert len(detections) == 1


@pytest.mark.usefixtures("again")
def test_tenant_is_added_changed_and_removed_live(
    pipeline: Pipeline, diagnostics: Callable[..., DiagnosticStatus]
) -> None:
    client = pipeline.client
    client.subscribe(Detection2DArray, "front/detections")
    front = client.publisher(Image, "front/image")
    done = threading.Event()
    sent = [0]

    def flow() -> None:
        while not done.wait(0.02):
            front.publish(shown(SHADES[0]))
            sent[0] += 1

    before = counts(pipeline, "front")
    flowing = threading.Thread(target=flow)
    flowing.start()
    try:
        assert client.set("tenants", **{"tenant.side.image_topic": "aside", "tenant.side.model": BLUE}) == ["", ""]
        assert client.get("tenants", "tenant.side.when_late") == "finish"
        (described,) = client.describe("tenants", "tenant.side.deadline_ms")
        assert "How soon" in described.description
        assert client.set("tenants", tenants=["front", "rear", "side"]) == [""]
        found = client.subscribe(Detection2DArray, "side/detections")
        side = client.publisher(Image, "aside")
        side.publish(shown(SHADES[5], 1))
        assert label_of(found.wait_for(1)[0]) == f"blue{SHADES[5]}"
        diagnostics("side", DiagnosticStatus.OK, "Frames flow")

        rows = {"tenant.side.deadline_ms": 30_000, "tenant.side.when_late": "drop"}
        assert client.set("tenants", **rows) == ["", ""]
        ours = pipeline.nodes["tenants"].pipeline
        wait_until(lambda: ours.view.tenants["side"].when_late is LatePolicy.DROP, "another deadline")
        assert ours.view.tenants["side"].deadline_s == 30.0
        assert client.set("tenants", **{"tenant.side.model": GREEN}) == [""]
        wait_until(lambda: tenants_of(pipeline)["side"] == GREEN, "another model")
        side.publish(shown(SHADES[5], 2))
        assert label_of(found.wait_for(2)[1]) == f"green{SHADES[5]}"
        assert counts(pipeline, "side").received == 2
        assert client.set("tenants", **{"tenant.side.image_topic": "elsewhere"}) == [""]
        client.publisher(Image, "elsewhere").publish(shown(SHADES[6], 3))
        assert label_of(found.wait_for(3)[2]) == f"green{SHADES[6]}"

        reports = client.subscribe(PipelineReport, "report")
        assert client.set("tenants", tenants=["front", "rear"]) == [""]
        gone = reports.wait_for_one(
            lambda stats: stats.tenant == "side" and stats.state == stats.REMOVED, "word of the removal"
        )
        assert gone.received == 0
        wait_until(lambda: not client.node.count_publishers("side/stats"), "the end of its statistics")
        wait_until(lambda: not client.node.count_publishers("side/detections"), "the end of its detections")
        wait_until(lambda: not client.node.count_subscribers("elsewhere"), "the end of its subscription")
    finally:
        done.set()
        flowing.join()
    after = settled(pipeline, "front", before.received + sent[0])
    assert after.received - before.received == sent[0]
    assert set(after.dropped) <= {"overrun"}


REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"tenants": ["front", "front"]}, ["listed twice", "front"]),
    ({"tenants": ["front", "2nd"]}, ["cannot be named '2nd'", "a letter in front"]),
    ({"tenants": ["left camera"]}, ["cannot be named 'left camera'"]),
    ({"tenants": ["left/front"]}, ["cannot be named 'left/front'"]),
    ({"tenants": [""]}, ["cannot be named ''"]),
    ({"tenants": "front"}, ["tenants cannot be 'front'", "a list of texts"]),
    ({"tenant.left camera.model": RED}, ["cannot be named 'left camera'"]),
    ({"tenant.front.image_topic": "not a topic"}, ["tenant.front.image_topic cannot be 'not a topic'"]),
    ({"tenant.front.deadline_ms": -1.0}, ["tenant.front.deadline_ms", "-1.0", "60000"]),
    ({"tenant.front.deadline_ms": float("nan")}, ["tenant.front.deadline_ms", "nan", "60000"]),
    ({"tenant.front.priority": 1.5}, ["tenant.front.priority cannot be 1.5", "a whole number"]),
    ({"tenant.front.when_late": "wait"}, ["tenant.front.when_late cannot be 'wait'", "finish, drop"]),
    ({"tenant.front.modle": RED}, ["no parameter 'tenant.front.modle'", "Did you mean 'tenant.front.model'?"]),
    ({"tenant.other.modle": RED}, ["Did you mean 'tenant.other.model'?"]),
    ({"window": 0}, ["window", "0", "1000"]),
    ({"memory_budget_mb": 1e-6}, ["memory_budget_mb"]),
    ({"device": "cpu"}, ["device", "read-only"]),
]


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_refused_change_gets_a_sentence_and_has_no_effect(
    pipeline: Pipeline, change: dict[str, Any], words: list[str]
) -> None:
    node = pipeline.nodes["tenants"]
    before, running, rows = node.values, node.pipeline.view.tenants, set(node.get_parameters_by_prefix(""))
    reason = pipeline.client.set_all("tenants", **{"tenant.fresh.priority": 3}, **change)
    for word in words:
        assert word in reason
    assert node.values == before
    assert node.pipeline.view.tenants == running
    assert set(node.get_parameters_by_prefix("")) == rows


@pytest.mark.usefixtures("again")
def test_tenant_with_bad_model_is_reported_and_recovers(
    pipeline: Pipeline, diagnostics: Callable[..., DiagnosticStatus]
) -> None:
    client = pipeline.client
    rows = {"tenant.side.model": "resnet5", "tenant.side.image_topic": "aside"}
    assert client.set_all("tenants", tenants=["front", "side", "rear"], **rows) == ""
    diagnostics("side", DiagnosticStatus.ERROR, "It does not run: There is no model 'resnet5'")
    rear = client.subscribe(Detection2DArray, "rear/detections")
    client.publisher(Image, "behind").publish(shown(SHADES[1]))
    assert label_of(rear.wait_for(1)[0]) == f"green{SHADES[1]}"
    assert not client.node.count_publishers("side/detections")

    assert client.set("tenants", **{"tenant.side.model": BLUE}) == [""]
    side = client.subscribe(Detection2DArray, "side/detections")
    client.publisher(Image, "aside").publish(shown(SHADES[3]))
    assert label_of(side.wait_for(1)[0]) == f"blue{SHADES[3]}"

    assert client.set("tenants", **{"tenant.side.model": "tenant_nets:yellow"}) == [""]
    diagnostics("side", DiagnosticStatus.WARN, "It runs as before: model 'tenant_nets:yellow' cannot be made")
    client.publisher(Image, "aside").publish(shown(SHADES[4]))
    assert label_of(side.wait_for(2)[1]) == f"blue{SHADES[4]}"


@pytest.mark.usefixtures("again")
def test_fast_tenant_changes_are_all_applied(pipeline: Pipeline) -> None:
    names = ["front", "rear", "one", "two", "three"]
    asked = [names[: 2 + number % 4] for number in (3, 1, 0, 2, 0, 3, 1)]
    for listed in asked:
        assert pipeline.client.set("tenants", tenants=listed) == [""]
    node = pipeline.nodes["tenants"]
    last = set(asked[-1])
    wait_until(lambda: set(node.running) == set(tenants_of(pipeline)) == last, "those that were asked for last")
    found = pipeline.client.subscribe(Detection2DArray, "rear/detections")
    pipeline.client.publisher(Image, "behind").publish(shown(SHADES[1]))
    assert label_of(found.wait_for(1)[0]) == f"green{SHADES[1]}"


def test_busy_shares_are_those_of_the_tenant(pipeline: Pipeline) -> None:
    client = pipeline.client
    front, rear = (client.subscribe(PipelineStats, f"{name}/stats") for name in ("front", "rear"))
    for name, found in (("front", front), ("rear", rear)):
        # Earlier frames do not count. Reports come by themselves, so the first idle period may lie before such a frame.
        earlier = settled(pipeline, name, 0).received
        found.wait_for_one(
            lambda stats: (
                stats.period_s > 0
                and stats.backbone_busy == stats.head_busy == 0
                and stats.report.received == earlier
                and stats.report.in_flight == 0
            ),
            "an idle period after all earlier frames",
        )
    begin, before = len(rear), counts(pipeline, "front")
    client.publisher(Image, "front/image").publish(shown(SHADES[0]))
    settled(pipeline, "front", before.received + 1)
    front.wait_for_one(lambda stats: 0 < stats.backbone_busy <= 1, "a busy backbone")
    front.wait_for_one(lambda stats: 0 < stats.head_busy <= 1, "a busy head")
    assert {(stats.backbone_busy, stats.head_busy) for stats in rear[begin:]} <= {(0.0, 0.0)}


def test_tenants_pause_and_resume(pipeline: Pipeline) -> None:
    client, images = pipeline.client, pipeline.client.publisher(Image, "front/image")
    before = counts(pipeline, "front")
    for number, (on, what) in enumerate(((False, "paused"), (True, "taken")), 1):
        answer = client.call(SetBool, "tenants/enable", SetBool.Request(data=on))
        assert answer.success
        assert what in answer.message
        images.publish(shown(SHADES[0]))
        found = settled(pipeline, "front", before.received + number)
    assert found.dropped["paused"] == before.dropped.get("paused", 0) + 1
    assert found.published == before.published + 1


def test_trace_names_tenant_and_slot_of_every_batch(pipeline: Pipeline) -> None:
    before = counts(pipeline, "front")
    pipeline.client.publisher(Image, "front/image").publish(shown(SHADES[0]))
    settled(pipeline, "front", before.received + 1)
    path = Path(pipeline.nodes["tenants"].values.trace)

    def stages() -> set[str]:
        events = json.loads(path.read_text().rstrip(",\n") + "]")
        rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        own_events = [event for event in events if event["ph"] == "X" and event["args"]["tenants"] == "front"]
        assert all(event["dur"] >= 0 and event["args"]["frames"] for event in own_events)
        return {
            rows[event["tid"]].partition(": ")[2] for event in own_events if rows[event["tid"]].startswith(f"{RED}, ")
        }

    wait_until(lambda: stages() == {"preprocess", "backbone", "head", "postprocess"}, "all stages")


@pytest.mark.usefixtures("again")
def test_impossible_detection_is_left_out_and_counted(
    pipeline: Pipeline, diagnostics: Callable[..., DiagnosticStatus]
) -> None:
    client = pipeline.client
    rows = {"tenant.side.model": "tenant_nets:odd", "tenant.side.image_topic": "side/image"}
    assert client.set_all("tenants", tenants=["front", "rear", "side"], **rows) == ""
    side, stats = client.subscribe(Detection2DArray, "side/detections"), client.subscribe(PipelineStats, "side/stats")
    stats.wait_for_one(lambda stats: stats.report.state == PipelineReport.RUNS, "its first report")
    client.publisher(Image, "side/image").publish(shown(SHADES[0]))
    status = diagnostics("side", DiagnosticStatus.WARN, "impossible boxes, scores or labels")
    assert {entry.key: entry.value for entry in status.values}["left out: box_not_finite"] == "1"
    assert label_of(side.wait_for(1)[0]) == "square"
    left_out = stats.wait_for_one(lambda stats: stats.report.left_out, "a count").report.left_out
    assert [(entry.reason, entry.count) for entry in left_out] == [("box_not_finite", 1)]


@pytest.mark.usefixtures("again")
def test_two_tenants_share_one_camera(pipeline: Pipeline) -> None:
    client = pipeline.client
    assert client.set("tenants", **{"tenant.front.image_topic": "behind"}) == [""]
    wait_until(lambda: client.node.count_subscribers("behind") == 2, "both to hear it")
    found = {name: client.subscribe(Detection2DArray, f"{name}/detections") for name in ("front", "rear")}
    images = client.publisher(Image, "behind")
    wait_until(lambda: images.get_subscription_count() == 2, "both to be matched")
    images.publish(shown(SHADES[7], 5))
    assert [label_of(found[name].wait_for(1)[0]) for name in found] == [f"red{SHADES[7]}", f"green{SHADES[7]}"]


def test_flooding_camera_costs_others_no_frame(pipeline: Pipeline) -> None:
    client = pipeline.client
    found = client.subscribe(Detection2DArray, "rear/detections")
    flood, calm = client.publisher(Image, "front/image"), client.publisher(Image, "behind")
    before = {name: counts(pipeline, name) for name in ("front", "rear")}
    for number in range(5):
        for _ in range(40):
            flood.publish(shown(SHADES[0]))
        calm.publish(shown(SHADES[1], number))
        found.wait_for(number + 1)
    flooded = settled(pipeline, "front", before["front"].received + 200)
    calm_one = settled(pipeline, "rear", before["rear"].received + 5)
    assert flooded.received - before["front"].received == 200
    assert set(flooded.dropped.items() - before["front"].dropped.items()) <= {("overrun", flooded.dropped["overrun"])}
    assert (calm_one.published - before["rear"].published, calm_one.dropped) == (5, before["rear"].dropped)


def test_only_the_silent_camera_causes_a_warning(
    pipeline: Pipeline, diagnostics: Callable[..., DiagnosticStatus]
) -> None:
    client = pipeline.client
    found = client.subscribe(Detection2DArray, "front/detections")
    client.publisher(Image, "front/image").publish(shown(SHADES[0]))
    found.wait_for(1)  # a camera that never sent an image is not silent but awaited
    rear = client.publisher(Image, "behind")
    assert client.set("stats", camera_timeout_s=1.0) == [""]
    done = threading.Event()

    def flow() -> None:
        while not done.wait(0.1):
            rear.publish(shown(SHADES[1]))

    flowing = threading.Thread(target=flow)
    flowing.start()
    try:
        diagnostics("front", DiagnosticStatus.WARN, "No frame has come in for")
        diagnostics("rear", DiagnosticStatus.OK, "Frames flow")
    finally:
        done.set()
        flowing.join()
        assert client.set("stats", camera_timeout_s=0.0) == [""]
    diagnostics("front", DiagnosticStatus.OK, "Frames flow")


@pytest.mark.usefixtures("again")
def test_deadline_of_zero_drops_nothing(pipeline: Pipeline) -> None:
    client = pipeline.client
    rows = {"tenant.front.deadline_ms": 0, "tenant.front.when_late": "drop"}
    assert client.set_all("tenants", **rows) == ""
    wait_until(
        lambda: pipeline.nodes["tenants"].pipeline.view.tenants["front"].when_late is LatePolicy.DROP, "the change"
    )
    found = client.subscribe(Detection2DArray, "front/detections")
    front = client.publisher(Image, "front/image")
    for number in range(3):
        front.publish(shown(SHADES[0], number))
        found.wait_for(number + 1)


@pytest.mark.usefixtures("again")
def test_tenant_is_removed_with_frames_in_flight(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    client, publish = pipeline.client, ResultPublisher.publish
    arrived, go_on = threading.Event(), threading.Event()

    def gate(publisher: ResultPublisher, origin: Origin, *arguments: Any) -> None:
        if origin.header.frame_id == "held up":
            arrived.set()
            assert go_on.wait(WAIT_S)
        publish(publisher, origin, *arguments)

    monkeypatch.setattr(ResultPublisher, "publish", gate)
    front = client.publisher(Image, "front/image")
    ledger = pipeline.nodes["tenants"].pipeline.view.ledger("front")
    before = ledger.counts()
    assert client.set("tenants", max_waiting=4) == [""]  # so that frames wait behind those that are held up
    try:
        for _ in range(4):
            front.publish(shown(SHADES[0], frame_id="held up"))
        assert arrived.wait(WAIT_S)
        assert client.set("tenants", tenants=["rear"]) == [""]
        wait_until(lambda: set(tenants_of(pipeline)) == {"rear"}, "the removal")
        rear = client.subscribe(Detection2DArray, "rear/detections")
        client.publisher(Image, "behind").publish(shown(SHADES[1]))
        rear.wait_for(1)
    finally:
        go_on.set()
        client.set("tenants", max_waiting=1)
    wait_until(lambda: not ledger.counts().in_flight, lambda: f"its frames settled: {ledger.counts()}")
    after = ledger.counts()
    assert after.balanced
    assert after.dropped["removed"] >= 1
    assert after.published - before.published <= 1  # the one that was under way already


@pytest.mark.usefixtures("again")
def test_empty_list_of_tenants_can_grow(pipeline: Pipeline, diagnostics: Callable[..., DiagnosticStatus]) -> None:
    assert pipeline.client.set("tenants", tenants=[]) == [""]
    wait_until(lambda: not tenants_of(pipeline), "the end of both")
    diagnostics("", DiagnosticStatus.STALE, "any tenant listed?")
    assert pipeline.client.get("tenants", "tenants") == []
    assert pipeline.client.set("tenants", tenants=["rear"]) == [""]
    found = pipeline.client.subscribe(Detection2DArray, "rear/detections")
    pipeline.client.publisher(Image, "behind").publish(shown(SHADES[2]))
    assert label_of(found.wait_for(1)[0]) == f"green{SHADES[2]}"


def test_first_tenant_may_come_after_start(context: Context, costs: dict[str, Any]) -> None:
    with Pipeline(context, tenants=costs) as empty:
        assert empty.client.state("tenants") == "active"
        assert empty.client.set_all("tenants", tenants=["late"], **{"tenant.late.model": BLUE}) == ""
        found = empty.client.subscribe(Detection2DArray, "late/detections")
        empty.client.publisher(Image, "late/image").publish(shown(SHADES[2]))
        assert label_of(found.wait_for(1)[0]) == f"blue{SHADES[2]}"


def test_tenants_pass_all_lifecycle_states_repeatedly(pipeline: Pipeline) -> None:
    client = pipeline.client
    for _ in range(2):
        assert all(client.transition("tenants", name) for name in ("deactivate", "cleanup", "configure", "activate"))
        found = client.subscribe(Detection2DArray, "front/detections")
        client.publisher(Image, "front/image").publish(shown(SHADES[2]))
        assert label_of(found.wait_for(1)[0]) == f"red{SHADES[2]}"


@dataclass
class TrialCamera:
    """A camera with its own tenant. Its images have its own shade, size and frame_id."""

    number: int
    rate_hz: float
    sent: int = 0
    found: Received = field(default_factory=Received)

    @property
    def name(self) -> str:
        return f"cam{self.number}"

    @property
    def model(self) -> str:
        return (RED, GREEN, BLUE)[self.number % 3]

    @property
    def label(self) -> str:
        return f"{self.model.split(':')[1]}{SHADES[self.number]}"

    def image(self) -> Image:
        self.sent += 1
        return shown(SHADES[self.number], self.sent, f"lens {self.number}", 40 + 8 * self.number, 64 + 4 * self.number)


def show(cameras: list[TrialCamera], publish: Callable[[TrialCamera, Image], None], seconds: float) -> None:
    """Publishes the images of all cameras on this thread, each at its own rate.

    A stall of the machine makes all later images later. Without that they would replace each other at its end.
    """
    started = time.monotonic()
    due = [(camera.number / 100, camera.number) for camera in cameras]
    heapq.heapify(due)
    while due[0][0] < seconds:
        at, number = due[0]
        time.sleep(max(0.0, started + at - time.monotonic()))
        late_s = time.monotonic() - started - at
        if late_s > STALL_S:
            started += late_s
        publish(cameras[number], cameras[number].image())
        heapq.heapreplace(due, (at + 1 / cameras[number].rate_hz, number))


@pytest.mark.parametrize("seconds", [4.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_eight_cameras_share_three_models(context: Context, costs: dict[str, Any], seconds: float) -> None:
    """Every tenant's ledger closes, and no detection is published for another camera."""
    rates = (5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
    cameras = [TrialCamera(number, rate) for number, rate in enumerate(rates)]
    tenants = {**costs, "tenants": [camera.name for camera in cameras], "image_depth": 500}
    tenants |= {f"tenant.{camera.name}.model": camera.model for camera in cameras}
    with Pipeline(context, stats={"period_s": 0.5}, tenants=tenants) as pipeline:
        client = pipeline.client
        assert len(pipeline.nodes["tenants"].pipeline.view.models) == 3  # those on one model share it
        stats = [client.subscribe(PipelineStats, f"{camera.name}/stats") for camera in cameras]
        publishers = [client.publisher(Image, f"{camera.name}/image") for camera in cameras]
        for camera in cameras:
            camera.found = client.subscribe(Detection2DArray, f"{camera.name}/detections")
        show(cameras, lambda camera, message: publishers[camera.number].publish(message), seconds)
        for camera in cameras:
            final = settled(pipeline, camera.name, camera.sent)
            assert final.received == camera.sent
            assert set(final.dropped) <= {"overrun"}
            assert final.published >= seconds  # at least one a second, however busy the machine is: none starves
            camera.found.wait_for(final.published)
            assert len(camera.found) == final.published
            assert {found.header.frame_id for found in camera.found} == {f"lens {camera.number}"}
            assert {label_of(found) for found in camera.found} == {camera.label}
            stamps = [found.header.stamp.sec for found in camera.found]
            assert stamps == sorted(set(stamps))
            assert set(stamps) <= set(range(1, camera.sent + 1))
            last = stats[camera.number].wait_for_one(
                lambda stats, sent=camera.sent: stats.report.received == sent and not stats.report.in_flight,
                "the last figures",
            )
            assert (last.tenant, last.report.published) == (camera.name, final.published)
            print(
                f"{camera.name} at {camera.rate_hz:g} Hz on {camera.model}: {final.received} received, "
                f"{final.published} published, {dict(final.dropped)} dropped, "
                f"latency p50 {last.report.latency_p50_ms:.1f} ms, p99 {last.report.latency_p99_ms:.1f} ms"
            )
            for message in stats[camera.number]:
                report = message.report
                assert (
                    report.received
                    == report.published + sum(entry.count for entry in report.dropped) + report.in_flight
                )


def test_costs_are_stored_in_the_given_database(costs: dict[str, Any], pipeline: Pipeline) -> None:
    assert Path(costs["tuning_database"]).is_file()
