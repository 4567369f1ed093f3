"""A dump of each node's parameters, loaded again, gives the same pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from rcl_interfaces.srv import GetParameters, ListParameters
from rclpy.context import Context
from rclpy.parameter import parameter_value_to_python
from ros_pipeline import Pipeline
from ros_processes import Process
from ros_support import START_S, Client, wait_until
from vision_msgs.msg import Detection2DArray

pytestmark = pytest.mark.timeout(4 * START_S)


def dump(client: Client, node: str) -> dict[str, Any]:
    """Returns all parameters of a node as ``ros2 param dump`` writes them; names with dots become nested tables."""
    names = list(client.call(ListParameters, f"{node}/list_parameters", ListParameters.Request()).result.names)
    answer = client.call(GetParameters, f"{node}/get_parameters", GetParameters.Request(names=names))
    tree: dict[str, Any] = {}
    for name, value in zip(names, answer.values, strict=True):
        *tables, last = name.split(".")
        table = tree
        for step in tables:
            table = table.setdefault(step, {})
        value = parameter_value_to_python(value)
        table[last] = value if isinstance(value, (bool, int, float, str)) else list(value)
    return {f"{client.node.get_namespace()}/{node}": {"ros__parameters": tree}}


def arguments(dumps: dict[str, Any], folder: Path, namespace: str) -> list[str]:
    """Writes the dumps to files; returns the arguments with which a process takes them."""
    files = []
    for node, text in dumps.items():
        file = folder / f"{node}.yaml"
        file.write_text(yaml.safe_dump(text))
        files += ["--params-file", str(file)]
    return ["--ros-args", *files, "-r", f"__ns:={namespace}"]


CHOSEN: dict[str, dict[str, Any]] = {
    "stats": {"period_s": 0.5},
    "head": {"weights": "none", "score_threshold": 0.0, "max_detections": 7},
    "backbone": {"weights": "none", "split_point": "block3", "batch_size": 2, "pool_slots": 3, "image_depth": 9},
    "camera": {"width": 64, "height": 48, "rate_hz": 20.0, "frame_id": "left_eye"},
}


def test_loaded_dump_gives_the_same_pipeline(context: Context, tmp_path: Path) -> None:
    with Pipeline(context, **CHOSEN) as pipeline:
        namespace = pipeline.namespace
        assert pipeline.client.set("backbone", batch_timeout_ms=20.0, max_rate_hz=1000.0) == ["", ""]
        dumps = {node: dump(pipeline.client, node) for node in CHOSEN}
    client = Client(context, namespace)
    try:
        with Process("pipeline", *arguments(dumps, tmp_path, namespace)) as process:
            wait_until(lambda: "split at" in process.printed or not process.runs, "the backbone to be active", START_S)
            assert process.runs, process.printed
            for node, before in dumps.items():
                assert dump(client, node) == before
            (found,) = client.subscribe(Detection2DArray, "detections").wait_for(1, START_S)
            assert found.header.frame_id == "left_eye"
            assert len(found.detections) <= 7
            assert client.get("backbone", "max_rate_hz") == 1000.0
    finally:
        client.close()


def test_loaded_dump_gives_the_same_tenants(context: Context, tmp_path: Path) -> None:
    tenants = {"tenants": ["front", "rear"], "tenant.front.weights": "none", "tenant.rear.weights": "none"}
    tenants |= {
        "tenant.rear.priority": 2,
        "tenant.rear.image_topic": "image",
        "tuning_database": str(tmp_path / "tuning.jsonl"),
    }
    with Pipeline(context, tenants=tenants) as pipeline:
        namespace = pipeline.namespace
        before = dump(pipeline.client, "tenants")
    client = Client(context, namespace)
    try:
        with Process("pipeline", *arguments({"tenants": before}, tmp_path, namespace)) as process:
            camera = client.subscribe(Detection2DArray, "rear/detections")
            wait_until(lambda: bool(camera) or not process.runs, "detections of a tenant", START_S)
            assert process.runs, process.printed
            assert dump(client, "tenants") == before
    finally:
        client.close()
