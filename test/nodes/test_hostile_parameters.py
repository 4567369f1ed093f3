"""No request for a parameter ends a process, whatever it names or sets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import rclpy
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import (
    DescribeParameters,
    GetParameters,
    GetParameterTypes,
    ListParameters,
    SetParameters,
    SetParametersAtomically,
)
from ros_processes import Process
from ros_support import START_S, Client, wait_until

SMALL = ("-p", "weights:=none", "-p", "engine:=torch", "-p", "width:=64", "-p", "height:=48")
TENANTS = ("-p", "tenants:=[a]", "-p", "tenant.a.model:=shapes", "-p", "tenant.a.weights:=none", "-p", "engine:=torch")
NODES = {"pipeline": ("backbone", "head", "camera", "stats"), "tenants": ("tenants",)}
ARGUMENTS = {"pipeline": SMALL, "tenants": TENANTS}
NAMES = [
    "",
    "*",
    "**",
    "tenant.*.model",
    "tenant..model",
    "a.b.c",
    "class_labels",
    "qos_overrides",
    "x" * 5000,
    "\u00e9 \U0001f697",
]
NUMBERS = ParameterValue(type=ParameterType.PARAMETER_INTEGER, integer_value=2**63 - 1)
VALUES = [
    ParameterValue(),
    NUMBERS,
    ParameterValue(type=200, string_value="a type that ROS lacks"),
    ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=float("nan")),
    ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=float("-inf")),
    ParameterValue(type=ParameterType.PARAMETER_STRING, string_value="\U0001f697" * 1000),
    ParameterValue(type=ParameterType.PARAMETER_BYTE_ARRAY, byte_array_value=[b"\xff", b"\x00"]),
    ParameterValue(type=ParameterType.PARAMETER_STRING_ARRAY, string_array_value=["", "/", "a b", "\U0001f697"]),
    ParameterValue(type=ParameterType.PARAMETER_DOUBLE_ARRAY, double_array_value=[float("inf")]),
]

pytestmark = pytest.mark.timeout(5 * START_S)


@pytest.fixture
def client(ros_domain: int) -> Iterator[Client]:
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=ros_domain)
    found = Client(context)
    yield found
    found.close()
    rclpy.try_shutdown(context=context)


@pytest.mark.parametrize("executable", NODES)
def test_no_request_ends_a_process(executable: str, client: Client) -> None:
    with Process(executable, "--ros-args", *ARGUMENTS[executable]) as process:
        for node in NODES[executable]:
            wait_until(lambda node=node: client.state(node) == "active" or not process.runs, f"{node} active", START_S)
            assert process.runs, process.printed
            listed = client.call(ListParameters, f"{node}/list_parameters", ListParameters.Request()).result.names
            assert len(listed) > 3
            for names in [[name] for name in (*listed, *NAMES)] + [listed, listed + NAMES]:
                for service, kind in (
                    ("get_parameters", GetParameters),
                    ("describe_parameters", DescribeParameters),
                    ("get_parameter_types", GetParameterTypes),
                ):
                    client.call(kind, f"{node}/{service}", kind.Request(names=names))
            for prefixes, depth in ([], 2**63), (["*", "", "tenant.", ".."], 0), (["tenant"], 1):
                request = ListParameters.Request(prefixes=prefixes, depth=depth)
                client.call(ListParameters, f"{node}/list_parameters", request)
            # rclpy does not answer a type that it does not know, so no answer is waited for
            each = client.node.create_client(SetParameters, f"{node}/set_parameters")
            whole = client.node.create_client(SetParametersAtomically, f"{node}/set_parameters_atomically")
            wait_until(lambda each=each, whole=whole: each.service_is_ready() and whole.service_is_ready(), "services")
            for name in (*listed, *NAMES):
                for value in VALUES:
                    each.call_async(SetParameters.Request(parameters=[Parameter(name=name, value=value)]))
            for value in VALUES:
                parameters = [Parameter(name=name, value=value) for name in NAMES]
                whole.call_async(SetParametersAtomically.Request(parameters=parameters))
            found = client.call(GetParameters, f"{node}/get_parameters", GetParameters.Request(names=["autostart"]))
            assert found.values[0].bool_value
            assert process.runs, process.printed
