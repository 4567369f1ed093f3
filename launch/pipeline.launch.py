"""Launches the pipeline in one process: camera, backbone, head and stats, or tenants in place of backbone and head.

    ros2 launch split_infer_ros pipeline.launch.py source:=none image_topics:=/left/image,/right/image
    ros2 launch split_infer_ros pipeline.launch.py config:=multi_camera
    ros2 launch split_infer_ros pipeline.launch.py config:=multi_camera transport:=shared_memory

Defaults come from the nodes or from a parameter file. An argument that is not given changes nothing.

A process that lost its GPU starts again, unless respawn:=false. Any other end is final.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from ament_index_python.packages import get_package_share_directory
from launch import Action, LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, EmitEvent, OpaqueFunction, RegisterEventHandler
from launch.event_handlers import OnProcessExit
from launch.events import matches_action
from launch.events.process import ProcessExited, ShutdownProcess
from launch_ros.actions import Node
from launch_ros.descriptions import Parameter

from split_infer_ros.runtime.faults import DEVICE_LOST_EXIT
from split_infer_ros.runtime.user_files import is_regular, user_path

PACKAGE = "split_infer_ros"
SCENARIOS = Path(get_package_share_directory(PACKAGE), "config")
NOT_GIVEN = ""
RESPAWN_DELAY_S = 1.0

# from an argument to its description and its choices
ARGUMENTS: dict[str, tuple[str, list[str] | None]] = {
    "model": ("The model: a name of the catalogue, timm:NAME, FILE.onnx, package.module:factory or FILE.pt2.", None),
    "allow_user_code": ("Whether to load a factory or FILE.pt2, which can run any code.", ["true", "false"]),
    "weights": ("The model's weights: default, random, none, or the path of a file.", None),
    "labels": ("The file of the class names of FILE.onnx, if its metadata has none.", None),
    "decoder": ("How the outputs of FILE.onnx are read, such as yolov8; auto: recognised by their shapes.", None),
    "preprocessing": ("How images become the input of FILE.onnx, such as letterbox; auto: as its exporter does.", None),
    "input_size": ("The input size of FILE.onnx as HEIGHTxWIDTH, if the file does not fix it.", None),
    "source": (
        "Where images come from: shapes, folder:PATH, video:PATH, bag:PATH[:TOPIC], v4l2:DEVICE, or none if other "
        "nodes publish them.",
        None,
    ),
    "image_topics": ("The topics of the images, separated by commas: /a,/b or [/a, /b].", None),
    "image_transport": ("The form of the images: raw, or compressed (from TOPIC/compressed).", ["raw", "compressed"]),
    "engine": (
        "What executes the model: auto, torch, onnxruntime, openvino, onnxruntime:PROVIDER or openvino:DEVICE.",
        None,
    ),
    "precision": ("The precision in which the model computes, such as auto, fp32, fp16, bf16 or int8.", None),
    "split_point": ("The block after which the model is split; auto: the one that measures best.", None),
    "batch_size": ("Frames in a batch, 1 to 256; 0: one, or what tuning found.", None),
    "memory_policy": ("Where features are stored.", ["auto", "device", "managed", "pinned"]),
    "transport": (
        "How features go to the heads of tenants. shared_memory: each head is a process, which this file starts.",
        ["intra_process", "shared_memory", "network"],
    ),
    "config": (
        "A parameter file: a path, or one of this package's scenarios ("
        + ", ".join(sorted(file.stem for file in SCENARIOS.glob("*.yaml")))
        + ").",
        None,
    ),
    "namespace": ("The namespace of all nodes and topics.", None),
    "respawn": ("Whether the process starts again after it lost its GPU; true unless given.", ["true", "false"]),
    "log_level": ("The lowest level that is logged.", ["debug", "info", "warn", "error", "fatal"]),
}
# from an argument that is a parameter of the same name to its type
PARAMETERS: dict[str, type] = {
    "model": str,
    "allow_user_code": bool,
    "weights": str,
    "labels": str,
    "decoder": str,
    "preprocessing": str,
    "input_size": str,
    "source": str,
    "image_transport": str,
    "engine": str,
    "precision": str,
    "split_point": str,
    "batch_size": int,
    "memory_policy": str,
    "transport": str,
}
# parameters that the head of a tenant takes from those of the tenant, and from those that all tenants share
TENANT_ROWS = ("model", "weights", "decoder", "labels", "input_size", "preprocessing")
SHARED_ROWS = (
    "allow_user_code",
    "tuning_database",
    "engine",
    "precision",
    "head_threads",
    "head_cores",
    "score_threshold",
    "nms_threshold",
    "max_detections",
)


def parameter_file(name: str) -> Path:
    """Returns the path of a parameter file or of a scenario.

    Raises:
        FileNotFoundError: there is neither of that name.
    """
    for file in (SCENARIOS / f"{name}.yaml", user_path(name)):
        if is_regular(file):
            return file
    raise FileNotFoundError(f"config: there is neither a parameter file nor a scenario '{name}'.")


def typed_parameter(name: str, text: str) -> Parameter:
    """Returns a parameter with the type that the nodes declare.

    Raises:
        ValueError: it takes a whole number, and the text is none.
    """
    kind = PARAMETERS[name]
    try:
        value = text == "true" if kind is bool else kind(text)
    except ValueError:
        raise ValueError(f"{name} cannot be '{text}'; it takes a whole number.") from None
    return Parameter(name, value, value_type=kind)


def listed(text: str) -> list[str]:
    """Returns the items of a list, separated by commas. Brackets around it and quotes around an item are left out."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    items = [item.strip().strip("'\"").strip() for item in text.split(",")]
    return [item for item in items if item]


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the full names and the values of parameters that are nested."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def tenants_parameters(file: Path) -> dict[str, Any]:
    """Returns the parameters that a file gives the node ``tenants``, by their full names."""
    found: dict[str, Any] = {}
    for key, value in flat(yaml.safe_load(file.read_bytes()) or {}):
        node, _, name = key.partition(".ros__parameters.")
        if node.endswith(("tenants", "**")):
            found[name] = value
    return found


def start_heads(given: dict[str, str]) -> list[Action]:
    """Returns a process for the head of each tenant in the parameter file; none unless these are to be started here.

    Raises:
        ValueError: there are no tenants.
    """
    transport = given.get("transport", "intra_process")
    if transport == "intra_process":
        return []
    found = tenants_parameters(parameter_file(given["config"])) if "config" in given else {}
    if not found.get("tenants"):
        raise ValueError(f"transport cannot be '{transport}' without tenants; name a config that lists some.")
    if transport == "network":
        return []
    heads: list[Action] = []
    for name in found["tenants"]:
        rows = {row: found[row] for row in SHARED_ROWS if row in found}
        rows |= {row: found[key] for row in TENANT_ROWS if (key := f"tenant.{name}.{row}") in found}
        parameters = [Parameter(row, value, value_type=type(value)) for row, value in rows.items()]
        parameters += [typed_parameter(row, given[row]) for row in (*SHARED_ROWS, "transport") if row in given]
        heads.append(
            Node(
                package=PACKAGE,
                executable="head",
                namespace="/".join(filter(None, (given.get("namespace", "").rstrip("/"), name))),
                parameters=parameters,
                ros_arguments=["--log-level", given["log_level"]] if "log_level" in given else [],
                output="screen",
            )
        )
    return heads


def start_pipeline(context: LaunchContext) -> list[Action]:
    """Returns the processes with the arguments that were given, and what decides whether the first starts again."""
    given = {name: context.launch_configurations[name] for name in ARGUMENTS}
    given = {name: value for name, value in given.items() if value != NOT_GIVEN}
    parameters: list[Path | Parameter] = []
    if "config" in given:
        parameters.append(parameter_file(given["config"]))
    parameters += [typed_parameter(name, given[name]) for name in PARAMETERS if name in given]
    if "image_topics" in given:
        parameters.append(Parameter("image_topics", listed(given["image_topics"]), value_type=list[str]))
    process = Node(
        package=PACKAGE,
        executable="pipeline",
        namespace=given.get("namespace"),
        parameters=parameters,
        ros_arguments=["--log-level", given["log_level"]] if "log_level" in given else [],
        output="screen",
        respawn=given.get("respawn") != "false",
        respawn_delay=RESPAWN_DELAY_S,
    )

    def prevent_respawn(event: ProcessExited, context: LaunchContext) -> Action | None:
        """Launch restarts any process that ends. Within the delay, this event has it leave the process ended."""
        if event.returncode == DEVICE_LOST_EXIT:
            return None
        return EmitEvent(event=ShutdownProcess(process_matcher=matches_action(process)))

    prevention = RegisterEventHandler(OnProcessExit(target_action=process, on_exit=prevent_respawn))
    return [prevention, process, *start_heads(given)]


def generate_launch_description() -> LaunchDescription:
    """Returns the description that ``ros2 launch`` runs."""
    arguments = [
        DeclareLaunchArgument(
            name,
            default_value=NOT_GIVEN,
            description=description,
            choices=choices and [NOT_GIVEN, *choices],
        )
        for name, (description, choices) in ARGUMENTS.items()
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=start_pipeline)])
