"""Every example in the documentation runs, or says why it cannot. Commands of ROS 2 are compared with the code."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from documentation import LANGUAGES, ROOT, Example, commands, examples, pages
from reference import NODES

from split_infer_ros.__main__ import executables
from split_infer_ros.nodes.head import HeadParameters
from split_infer_ros.nodes.parameters.table import Rows
from split_infer_ros.nodes.parameters.tenants import TenantParameters, TenantsParameters

EXAMPLES = list(examples())
TIMEOUT_S = 300  # alone on a machine an example takes a tenth of this
SLOW_TIMEOUT_S = 600


def run_example(example: Example, folder: Path, timeout_s: float) -> None:
    """Runs an example: Python in this environment, bash from the root of the checkout."""
    if example.language == "python":
        command, cwd = [sys.executable, "-c", example.text], folder
    else:
        written = re.compile(r"(?<=[ =])(\w+\.(?:json|png))\b")  # what an example writes goes to the test's folder
        script = written.sub(lambda found: str(folder / found[1]), example.text)
        command, cwd = ["bash", "-euo", "pipefail", "-c", script], ROOT
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV_")}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, f"{example}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def without_comments(example: Example) -> str:
    """The code of an example. Pages may have the same one with other comments."""
    if example.language == "python":
        return ast.unparse(ast.parse(example.text))
    return example.text


QUICK = {without_comments(each): each for each in EXAMPLES if each.is_quick}


@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.parametrize("example", QUICK.values(), ids=str)
def test_example_runs(example: Example, tmp_path: Path) -> None:
    run_example(example, tmp_path, TIMEOUT_S)


@pytest.mark.slow
@pytest.mark.timeout(2 * SLOW_TIMEOUT_S)
@pytest.mark.parametrize("example", [each for each in EXAMPLES if each.is_slow], ids=str)
def test_slow_example_runs(example: Example, tmp_path: Path) -> None:
    text = "\n".join(line for line in example.text.splitlines() if not line.startswith("scripts/test"))
    run_example(Example(example.page, example.line, example.language, "", text), tmp_path, SLOW_TIMEOUT_S)


def test_enough_examples_run() -> None:
    assert sum(each.is_quick for each in EXAMPLES) >= 7
    assert all(each.language in LANGUAGES for each in EXAMPLES)


def test_blocks_of_commands_name_their_language() -> None:
    for page in pages():
        if "results" in page.parts:
            continue
        opening = [line for number, line in enumerate(re.findall(r"(?m)^```.*$", page.read_text())) if number % 2 == 0]
        assert "```" not in opening, f"{page}: a block without a language, such as bash or text"


@pytest.mark.parametrize("example", [each for each in EXAMPLES if "ros2 " in each.text], ids=str)
def test_ros2_commands_name_what_exists(example: Example) -> None:
    for command in commands(example):
        words = shlex.split(command)
        if words[:3] == ["ros2", "run", "split_infer_ros"]:
            assert words[3] in executables(), command
        if words[:3] == ["ros2", "launch", "split_infer_ros"]:
            assert (ROOT / "launch" / words[3]).is_file(), command
            arguments = {word.partition(":=")[0] for word in words[4:]}
            assert arguments <= launch_arguments(), command
        if words[:3] == ["ros2", "param", "set"]:
            node, name, value = words[3].strip("/"), words[4], words[5]
            accept(node, {name: value})
        if "--ros-args" in words:
            assigned = [word for flag, word in pairwise(words) if flag == "-p"]
            for each in assigned:
                name = each.partition(":=")[0].rpartition(":")[2]
                assert any(name in Rows(table) for table in NODES.values()), command


def accept(node: str, changes: dict[str, str]) -> None:
    """Lets the table of a node check values that are written as on the command line."""
    rows, values = Rows(NODES[node]), NODES[node]()
    for name, text in changes.items():
        row = rows.row(name)
        assert row is not None, f"{node} has no parameter {name}"
        default = row.setting.default
        listed = tuple(part.strip() for part in text.strip("[]").split(","))
        value = listed if text.startswith("[") else text if isinstance(default, str) else yaml.safe_load(text)
        rows.changed(values, {name: value})


def test_launch_arguments_have_the_types_and_choices_of_the_parameters() -> None:
    arguments, types = launch_table("ARGUMENTS"), launch_table("PARAMETERS")
    tables = [Rows(table) for table in NODES.values()]
    for name, kind in types.items():
        rows = [row for table in tables if (row := table.row(name)) is not None]
        assert rows, f"no node has the parameter {name}"
        assert isinstance(kind, ast.Name)
        assert {type(row.setting.default).__name__ for row in rows} == {kind.id}, name
        choices = ast.literal_eval(arguments[name].elts[1])  # type: ignore[attr-defined]
        if kind.id != "bool" and choices is not None:
            assert {tuple(sorted(row.setting.choices)) for row in rows} == {tuple(sorted(choices))}, name


@pytest.mark.parametrize("text", ["/a,/b", "[/a, /b]", """['/a', "/b"]""", " /a , /b, "])
def test_topics_of_the_launch_file_may_be_in_brackets(text: str) -> None:
    assert launch_function("listed")(text) == ["/a", "/b"]


def test_launch_file_finds_the_tenants_of_a_parameter_file(tmp_path: Path) -> None:
    names = {"Any": Any, "Iterator": Iterator, "Path": Path, "yaml": yaml}
    read = launch_function("tenants_parameters", **names, flat=launch_function("flat", **names))
    assert read(ROOT / "config" / "multi_camera.yaml")["tenant.rear.model"] == "ssdlite320"
    assert read(ROOT / "config" / "live_camera.yaml").get("tenants") is None
    file = tmp_path / "nested.yaml"
    file.write_text("""
robot: {tenants: {ros__parameters: {tenants: [a], tenant.a.model: one}}}
/**: {ros__parameters: {precision: bf16}}
/robot/camera: {ros__parameters: {source: none}}
""")
    assert read(file) == {"tenants": ["a"], "tenant.a.model": "one", "precision": "bf16"}


def test_launch_file_hands_heads_parameters_that_they_have() -> None:
    own, shared = (ast.literal_eval(launch_value(name)) for name in ("TENANT_ROWS", "SHARED_ROWS"))
    assert all(Rows(table).row(name) for table in (HeadParameters, TenantParameters) for name in own)
    assert all(Rows(table).row(name) for table in (HeadParameters, TenantsParameters) for name in shared)


def launch_value(name: str) -> ast.expr:
    """Returns what the launch file assigns to a name."""
    tree = ast.parse((ROOT / "launch" / "pipeline.launch.py").read_text())
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name]
    return assigned[0].value


def launch_function(name: str, **names: Any) -> Any:
    """Returns a function of the launch file, which needs only these names."""
    tree = ast.parse((ROOT / "launch" / "pipeline.launch.py").read_text())
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    exec(ast.unparse(function), names)
    return names[name]


def launch_arguments() -> set[str]:
    """Returns the arguments that the launch file declares."""
    return set(launch_table("ARGUMENTS"))


def launch_table(name: str) -> dict[str, ast.expr]:
    """Returns a dictionary of the launch file as it is written there. Its launch packages may be missing here."""
    tree = ast.parse((ROOT / "launch" / "pipeline.launch.py").read_text())
    (table,) = [
        node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name
    ]
    assert isinstance(table, ast.Dict)
    return {ast.literal_eval(key): value for key, value in zip(table.keys, table.values, strict=True) if key}
