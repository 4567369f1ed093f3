"""The SROS 2 policy grants exactly what the nodes use."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rclpy.context import Context
from ros_pipeline import Pipeline
from ros_support import wait_until

POLICY = Path(__file__).parents[2] / "config" / "sros2_policy.xml"
NODES = ("camera", "backbone", "head", "tenants", "stats")
CAMERA = {"source": "none"}
FRONT = {"tenants": ["front"], "tenant.front.weights": "none"}
# together they use all that the nodes can use
CONFIGURATIONS: list[dict[str, dict[str, Any]]] = [
    {"backbone": {"use_sim_time": True}, "head": {"use_sim_time": True}},
    {
        "backbone": {"transport": "shared_memory", "image_transport": "compressed"},
        "head": {"transport": "shared_memory"},
    },
    {"backbone": {"transport": "network"}, "head": {"transport": "network"}},
    {"camera": {"use_sim_time": True}, "stats": {"use_sim_time": True}},
    {"tenants": {**FRONT, "use_sim_time": True}},
    {"tenants": {**FRONT, "image_transport": "compressed"}},
    {"tenants": {**FRONT, "transport": "shared_memory"}},
    {"tenants": {**FRONT, "transport": "network"}},
]
Grants = dict[str, dict[str, set[str]]]  # node, kind of use, names


def granted() -> Grants:
    """Returns what the policy grants, with full names in the root namespace."""
    found: Grants = {}
    for profile in ElementTree.parse(POLICY).iter("profile"):
        assert profile.get("ns") == "/"
        node = profile.attrib["node"]
        uses = found[node] = defaultdict(set)
        for group in profile:
            for kind, answer in group.attrib.items():
                assert answer == "ALLOW"
                for name in group:
                    text = str(name.text).strip()
                    uses[kind].add(f"/{node}/{text[2:]}" if text.startswith("~/") else f"/{text.lstrip('/')}")
    return found


@pytest.fixture(scope="module")
def used(context: Context) -> Grants:
    """Returns what the nodes use in all configurations, as the ROS graph shows it."""
    found: Grants = {node: defaultdict(set) for node in NODES}
    for configuration in CONFIGURATIONS:
        nodes = [node for node in NODES if node != "tenants" or node in configuration]
        parameters = {node: {**(CAMERA if node == "camera" else {}), **configuration.get(node, {})} for node in nodes}
        with Pipeline(context, **parameters) as pipeline:
            graph, namespace = pipeline.client.node, pipeline.namespace
            queries = {
                "publish": graph.get_publisher_names_and_types_by_node,
                "subscribe": graph.get_subscriber_names_and_types_by_node,
                "reply": graph.get_service_names_and_types_by_node,
                "request": graph.get_client_names_and_types_by_node,
            }
            wait_until(lambda: graph.count_subscribers("report"), "all endpoints")
            if "tenants" in nodes:
                wait_until(lambda: graph.count_publishers("front/stats"), "statistics of the tenant")
            for node in nodes:
                for kind, query in queries.items():
                    names = {name.removeprefix(namespace) for name, _ in query(node, namespace)}
                    found[node][kind] |= names
    return found


@pytest.mark.parametrize("kind", ["publish", "subscribe", "reply", "request"])
@pytest.mark.parametrize("node", NODES)
def test_policy_grants_what_the_node_uses(used: Grants, node: str, kind: str) -> None:
    assert granted()[node].get(kind, set()) == used[node][kind]


def test_policy_covers_only_these_nodes() -> None:
    assert set(granted()) == set(NODES)
