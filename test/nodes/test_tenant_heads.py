"""Tenants whose heads are nodes of their own: in other processes, or on other hosts."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builtin_interfaces.msg import Time
from fork_server import Forker, ForkServer
from rclpy.context import Context
from rclpy.qos import DurabilityPolicy, QoSProfile
from ros_pipeline import Pipeline
from ros_support import START_S, WAIT_S, Received, wait_until
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from tenant_nets import SHADES
from vision_msgs.msg import Detection2DArray, VisionInfo

from split_infer_ros.buffers import segment as segments
from split_infer_ros.msg import PipelineStats
from split_infer_ros.nodes.result_publisher import ResultPublisher
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.ledger import LedgerCounts

RED, GREEN = "tenant_nets:red", "tenant_nets:green"
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
LOST = {"reader_died", "lease_expired", "no_head"}  # what a missing head may cost
transports = pytest.mark.parametrize("transport", ["shared_memory", "network"])
pytestmark = [pytest.mark.timeout(4 * START_S), pytest.mark.kills_nodes]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in place of /dev/shm, which other processes use too."""
    with tempfile.TemporaryDirectory(dir=segments.FOLDER) as found:
        monkeypatch.setattr(segments, "FOLDER", Path(found))
        yield Path(found)


class Cameras:
    """A pipeline of tenants with a camera each.

    Args:
        context: the ROS context.
        tenants: the model of each tenant.
        parameters: other parameters of the node ``tenants``.
    """

    def __init__(self, context: Context, tenants: dict[str, str], **parameters: Any) -> None:
        models = {f"tenant.{name}.model": model for name, model in tenants.items()}
        values = {"engine": "torch", "allow_user_code": True, "image_reliability": "reliable", **models, **parameters}
        self.pipeline = Pipeline(context, stats={"period_s": 0.2}, tenants={"tenants": list(tenants), **values})
        self.client = self.pipeline.client
        self.transport = values["transport"]
        self.found: dict[str, Received] = {}
        self._images: dict[str, Any] = {}
        self.sent = 0

    def __enter__(self) -> Cameras:
        return self

    def __exit__(self, *exception: object) -> None:
        self.pipeline.close()

    def add_head(self, tenant: str, model: str) -> None:
        """Starts a head of this process in the namespace of a tenant."""
        values = {"transport": self.transport, "model": model, "weights": "default", "allow_user_code": True}
        self.pipeline.add("head", within=tenant, **values)

    def show(self, tenant: str, shade: int = SHADES[0], frame_id: str = "") -> int:
        """Sends an image of a tenant's camera; returns its stamp."""
        if tenant not in self._images:
            self._images[tenant] = self.client.publisher(Image, f"{tenant}/image")
        self.sent += 1
        header = Header(stamp=Time(sec=self.sent), frame_id=frame_id)
        data = bytes([shade]) * (3 * 64 * 48)
        self._images[tenant].publish(Image(header=header, height=48, width=64, encoding="rgb8", step=3 * 64, data=data))
        return self.sent

    def flows(self, tenant: str) -> None:
        """Sends images until one has a result: DDS takes a while to discover a head."""
        if tenant not in self.found:
            self.found[tenant] = self.client.subscribe(Detection2DArray, f"{tenant}/detections")
        known, found = len(self.found[tenant]), self.found[tenant]

        def arrives() -> bool:
            self.show(tenant)
            time.sleep(0.1)
            return len(found) > known

        wait_until(arrives, lambda: f"results of {tenant}: {self.counts(tenant)}", START_S)
        self.settled(tenant)

    def result_of(self, tenant: str, stamp: int) -> Any:
        """Waits for the result of an image."""
        return self.found[tenant].wait_for_one(lambda message: message.header.stamp.sec == stamp, f"result {stamp}")

    def counts(self, tenant: str) -> LedgerCounts:
        """Returns a tenant's counts, which must close at every instant."""
        found = self.pipeline.nodes["tenants"].pipeline.view.report(tenant, time.monotonic()).counts
        assert found.balanced, found
        return found

    def settled(self, tenant: str, received: int = 0) -> LedgerCounts:
        """Returns a tenant's counts once so many frames came in and none is in flight."""
        wait_until(
            lambda: (now := self.counts(tenant)).received >= received and not now.in_flight,
            lambda: f"{received} settled frames: {self.counts(tenant)}",
        )
        return self.counts(tenant)

    def publishers(self, topic: str) -> list[str]:
        """Returns the full names of the nodes that publish on a topic."""
        found = self.client.node.get_publishers_info_by_topic(f"{self.pipeline.namespace}/{topic}")
        return sorted(f"{info.node_namespace}/{info.node_name}" for info in found)


def label_of(message: Detection2DArray) -> str:
    return str(message.detections[0].results[0].hypothesis.class_id)


@transports
def test_results_come_from_each_tenants_own_head(context: Context, folder: Path, transport: str) -> None:
    with Cameras(context, {"left": RED, "right": RED}, transport=transport) as cameras:
        namespace = cameras.pipeline.namespace
        served = cameras.pipeline.nodes["tenants"].pipeline.view.models
        assert len({id(model.instance.model) for model in served.values()}) == 1
        assert len(served) == 2
        for number, name in enumerate(("left", "right")):
            cameras.add_head(name, RED)
            cameras.flows(name)
            stamp = cameras.show(name, SHADES[number], f"{name} lens")
            message = cameras.result_of(name, stamp)
            assert (message.header.frame_id, label_of(message)) == (f"{name} lens", f"red{SHADES[number]}")
            assert cameras.publishers(f"{name}/detections") == [f"{namespace}/{name}/head"]
            (info,) = cameras.client.subscribe(VisionInfo, f"{name}/vision_info", LATCHED).wait_for(1)
            assert info.database_location == f"{namespace}/{name}/head/class_labels"
            counts = cameras.settled(name)
            assert counts.published >= 2
            assert set(counts.dropped) <= LOST
            stats = cameras.client.subscribe(PipelineStats, f"{name}/stats").wait_for_one(
                lambda stats, counts=counts: stats.report.published == counts.published, "all that was published"
            )
            assert (stats.report.tenant, stats.report.in_flight) == (name, 0)
            assert stats.report.head_p50_ms >= 0
        assert len(cameras.found["left"]) == cameras.counts("left").published


@transports
def test_tenant_comes_and_goes_with_its_head(
    context: Context, folder: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, held_up, go_on = ResultPublisher.publish, threading.Event(), threading.Event()

    def gate(publisher: ResultPublisher, origin: Origin, *arguments: Any) -> None:
        if origin.header.frame_id == "held up":
            held_up.set()
            assert go_on.wait(WAIT_S)
        publish(publisher, origin, *arguments)

    monkeypatch.setattr(ResultPublisher, "publish", gate)
    topic = {"shared_memory": "side/features", "network": "side/features/data"}[transport]
    with Cameras(context, {"left": RED}, transport=transport) as cameras:
        client, server = cameras.client, cameras.pipeline.nodes["tenants"].pipeline
        cameras.add_head("left", RED)
        cameras.flows("left")
        assert client.set_all("tenants", tenants=["left", "side"], **{"tenant.side.model": GREEN}) == ""
        cameras.add_head("side", GREEN)
        cameras.flows("side")
        assert label_of(cameras.found["side"][-1]) == f"green{SHADES[0]}"
        try:
            cameras.show("side", frame_id="held up")
            assert held_up.wait(WAIT_S)
            assert client.set("tenants", tenants=["left"]) == [""]
            wait_until(lambda: list(server.view.tenants) == ["left"], "the removal")
            cameras.flows("left")
            assert cameras.publishers(topic)  # its batch is out
        finally:
            go_on.set()
        wait_until(lambda: not server.view.leaving, "the end of its last batch")
        wait_until(lambda: not cameras.publishers(topic), "the end of its features")
        cameras.flows("left")
        assert client.set("tenants", tenants=["left", "side"]) == [""]
        wait_until(lambda: "side" in server.view.tenants, "its return")
        cameras.flows("side")
        cameras.pipeline.remove("side/head")


def test_tenant_with_another_model_needs_another_head(context: Context, folder: Path) -> None:
    with Cameras(context, {"left": RED, "right": RED}, transport="shared_memory") as cameras:
        for name in ("left", "right"):
            cameras.add_head(name, RED)
            cameras.flows(name)
        before, server = cameras.counts("left"), cameras.pipeline.nodes["tenants"].pipeline
        assert cameras.client.set("tenants", **{"tenant.left.model": GREEN}) == [""]
        wait_until(lambda: server.view.tenants["left"].model == GREEN, "another model")
        cameras.show("left")
        after = cameras.settled("left", before.received + 1)
        assert after.dropped["lease_expired"] == before.dropped.get("lease_expired", 0) + 1  # its head refused it
        cameras.pipeline.remove("left/head")
        cameras.add_head("left", GREEN)
        cameras.flows("left")
        assert label_of(cameras.found["left"][-1]) == f"green{SHADES[0]}"
        cameras.flows("right")
        assert label_of(cameras.found["right"][-1]) == f"red{SHADES[0]}"


@transports
def test_killed_head_costs_only_its_own_tenants_frames(
    context: Context, folder: Path, forker: Forker, transport: str
) -> None:
    names = ("left", "right")
    plain = {f"tenant.{name}.weights": "none" for name in names}
    shapes = dict.fromkeys(names, "shapes")
    with ForkServer(folder, forker) as fork_server, Cameras(context, shapes, transport=transport, **plain) as cameras:

        def start(name: str) -> Any:
            namespace = f"{cameras.pipeline.namespace}/{name}"
            return fork_server.start("head", namespace=namespace, transport=transport)

        heads = {name: start(name) for name in names}
        for name in names:
            cameras.flows(name)
        before = {name: cameras.counts(name) for name in names}
        fork_server.kill(heads["left"])
        for _ in range(20):
            cameras.show("left")
            cameras.result_of("right", cameras.show("right"))
        after = {name: cameras.settled(name, before[name].received + 20) for name in names}
        assert after["right"].published == before["right"].published + 20
        assert after["right"].dropped == before["right"].dropped
        assert after["left"].published == before["left"].published
        lost = set(dict(after["left"].dropped.items() - before["left"].dropped.items()))
        assert lost
        assert lost <= LOST | {"overrun"}
        heads["left"] = start("left")
        cameras.flows("left")
