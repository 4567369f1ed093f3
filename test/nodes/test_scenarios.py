"""The scenarios in config/ contain only parameters that the nodes accept and that differ from the defaults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rclpy.context import Context
from ros_pipeline import NODE_TYPES

from split_infer_ros.nodes.parameters.declaration import refuse_unknown
from split_infer_ros.nodes.parameters.table import Rows

SCENARIOS = sorted((Path(__file__).parents[2] / "config").glob("*.yaml"))


def given(path: Path) -> dict[str, dict[str, Any]]:
    """Returns a file's parameters by node. The file must name nodes so that they match in every namespace."""
    found = {}
    for key, value in yaml.safe_load(path.read_text()).items():
        stars, name = key.rsplit("/", 1)
        assert stars == "/**"
        found[name] = dict(flat(value["ros__parameters"]))
    return found


def flat(table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the values of nested tables, with dots in their names as in ROS."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", inner) for key, inner in flat(value))
        else:
            yield name, value


def test_scenarios_exist() -> None:
    assert SCENARIOS


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_is_accepted_in_any_namespace(context: Context, path: Path) -> None:
    for name, values in given(path).items():
        node = NODE_TYPES[name](
            context=context,
            namespace="/some/where",
            use_global_arguments=False,
            cli_args=["--ros-args", "--params-file", str(path)],
        )
        refuse_unknown([node.table])
        in_force = {key: node.get_parameter(key).value for key in values}
        node.close()
        assert in_force == values


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_repeats_no_default(context: Context, path: Path) -> None:
    for name, values in given(path).items():
        node = NODE_TYPES[name](context=context, use_global_arguments=False)
        rows = Rows(type(node.values))
        node.close()
        repeated = {key for key, value in values.items() if rows.row(key).setting.default == value}
        assert repeated == set()
