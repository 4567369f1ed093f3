"""The reference pages say what the code says."""

from __future__ import annotations

import pytest
from rclpy.context import Context
from reference import REFERENCE, STATUS, pages
from ros_pipeline import NODE_TYPES

PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_page_agrees_with_the_code(name: str) -> None:
    assert (REFERENCE / name).read_text() == PAGES[name], "run scripts/run python scripts/reference.py"


def test_every_parameter_is_described() -> None:
    for line in PAGES["parameters.md"].splitlines():
        if line.startswith("| `"):
            assert line.rstrip(" |").endswith((".", "...")), line


@pytest.mark.parametrize("name", NODE_TYPES)
def test_every_parameter_that_a_node_sets_is_listed(context: Context, name: str) -> None:
    node = NODE_TYPES[name](context=context, use_global_arguments=False)
    try:
        listed = {parameter.replace("NAME", "*") for parameter in STATUS.get(name, ())}
        assert listed == set(node.table.status_parameters)
    finally:
        node.close()
