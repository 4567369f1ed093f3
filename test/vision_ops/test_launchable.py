"""The formulas that leave out schedules, against what the compiler says of them: docs/results/triton_*.csv."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from gpu_targets import SHARED_BYTES

from split_infer_ros.search.space import Config
from split_infer_ros.vision_ops.launchable import Gpu, depthwise_objection, pointwise_objection, shared_bytes
from split_infer_ros.vision_ops.schedules import DEPTHWISE, POINTWISE, SPACES

RESULTS = Path(__file__).parents[2] / "docs" / "results"
LONG_S = 10.0
DTYPES = {"fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32, "ieee": torch.float32}
ROUNDED_UP = 4096  # what a layout that is turned round, or a barrier, takes beyond the tiles
KERNEL = 5


class Swept(NamedTuple):
    """A row of a table; shared bytes are None where the compiler took too long."""

    target: int
    precision: str
    kernel: int
    schedule: Config
    compile_s: float
    shared_bytes: int | None

    @property
    def can_be_launched(self) -> bool:
        """It fits the target, and did not take long to compile."""
        fits = self.shared_bytes is not None and self.shared_bytes <= SHARED_BYTES[self.target]
        return fits and self.compile_s <= LONG_S

    @property
    def objection(self) -> str | None:
        """What the rule says."""
        if self.kernel > 1:
            return depthwise_objection(self.schedule, self.kernel)
        gpu = Gpu(self.target, SHARED_BYTES[self.target])
        return pointwise_objection(self.schedule, gpu, DTYPES[self.precision], self.precision == "tf32")


def swept(operator: str) -> list[Swept]:
    knobs = SPACES[operator].knobs
    with (RESULTS / f"triton_{operator}.csv").open(newline="") as file:
        return [
            Swept(
                *(int(row["target"]), row["precision"], int(row["kernel"])),
                {name: next(value for value in knobs[name] if str(value) == row[name]) for name in knobs},
                float(row["compile_s"].replace(">", "")),
                int(row["shared_bytes"]) if row["shared_bytes"] else None,
            )
            for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize("operator", SPACES)
def test_what_the_rule_admits_can_be_launched(operator: str) -> None:
    admitted = [row for row in swept(operator) if row.objection is None]
    assert len(admitted) > 500
    assert all(row.can_be_launched for row in admitted)


@pytest.mark.parametrize("operator", SPACES)
def test_the_rule_leaves_out_little_else(operator: str) -> None:
    able = [row for row in swept(operator) if row.can_be_launched]
    assert sum(row.objection is not None for row in able) < 0.05 * len(able)
    assert any(not row.can_be_launched for row in swept(operator)), "else nothing needs a rule"


def test_shared_memory_is_what_the_compiler_lays_out() -> None:
    for row in swept(POINTWISE):
        if row.shared_bytes is None or row.target < 80:  # older ones turn layouts round instead of copying ahead
            continue
        gpu, dtype = Gpu(row.target, SHARED_BYTES[row.target]), DTYPES[row.precision]
        cores = gpu.has_tensor_cores_for(dtype, row.precision == "tf32")
        expected = shared_bytes(row.schedule, row.target, dtype.itemsize, cores)
        results = int(row.schedule["pixels"]) * int(row.schedule["channels"]) * 4  # which are turned round at the end
        assert abs(row.shared_bytes - expected) <= ROUNDED_UP or row.shared_bytes == results


@pytest.mark.parametrize("target", SHARED_BYTES)
@pytest.mark.parametrize(("precision", "dtype"), DTYPES.items())
def test_the_defaults_can_always_be_launched(target: int, precision: str, dtype: torch.dtype) -> None:
    gpu = Gpu(target, SHARED_BYTES[target])
    assert pointwise_objection(SPACES[POINTWISE].default, gpu, dtype, precision == "tf32") is None
    assert depthwise_objection(SPACES[DEPTHWISE].default, KERNEL) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pixels": 128, "channels": 128, "depth": 64, "unrolled": 4}, "786,432 bytes .* has 232,448"),
        ({"pixels": 128, "channels": 128, "depth": 16, "warps": 2}, "holds 256 sums; more than 128"),
    ],
)
def test_an_objection_names_what_is_too_much(changes: Config, words: str) -> None:
    schedule = {**SPACES[POINTWISE].default, **changes}
    objection = pointwise_objection(schedule, Gpu(90, SHARED_BYTES[90]), torch.float32, True)
    assert objection is not None
    assert re.search(words, objection)
