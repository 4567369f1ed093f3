"""The README lists every parameter with its default."""

from __future__ import annotations

from pathlib import Path

import pytest

from split_infer_ros.nodes.camera import CameraParameters
from split_infer_ros.nodes.head import HeadParameters
from split_infer_ros.nodes.parameters.backbone import BackboneParameters
from split_infer_ros.nodes.parameters.table import Rows
from split_infer_ros.nodes.parameters.tenants import TenantParameters, TenantsParameters
from split_infer_ros.nodes.stats import StatsParameters

README = Path(__file__).parents[2] / "README.md"
TABLES = {
    "backbone": BackboneParameters,
    "head": HeadParameters,
    "camera": CameraParameters,
    "stats": StatsParameters,
    "tenants": TenantsParameters,
}


def rows() -> dict[tuple[str, str], tuple[str, bool]]:
    """Returns (default, read-only) by (node, parameter) from the README's table."""
    found = {}
    lines = README.read_text().split("| node | parameter | default |")[1].splitlines()[2:]
    for line in lines:
        if not line.startswith("|"):
            break
        nodes, names, defaults, _ = (cell.strip() for cell in line.strip("|").split("|"))
        read_only = names.endswith("(read-only)")
        parts = [text.strip(" `") for text in names.removesuffix("(read-only)").split(",")]
        values = [text.strip(" `") for text in defaults.split(",")]
        for node in TABLES if nodes == "all" else [text.strip() for text in nodes.split(",")]:
            for name, default in zip(parts, values, strict=True):
                found[node, name] = default, read_only
    return found


@pytest.mark.parametrize("node", TABLES)
def test_readme_lists_every_parameter(node: str) -> None:
    documented = {name: fact for (of, name), fact in rows().items() if of == node}
    one_of_each = {"of": {"NAME": TenantParameters()}} if node == "tenants" else {}
    declared = {
        name: (f"[{', '.join(value)}]" if isinstance(value, tuple) else str(value), row.metadata["read_only"])
        for name, (row, value) in Rows(TABLES[node]).flat(TABLES[node](**one_of_each)).items()
    }
    assert documented == declared
