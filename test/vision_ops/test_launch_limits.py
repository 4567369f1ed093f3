"""Formulas that reject schedules agree with what the compiler reported, docs/results/triton_*.csv."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from benchmarks.common.gpu_targets import MULTIPROCESSORS, SHARED_BYTES
from split_infer_ros.search.space import Config
from split_infer_ros.vision_ops.launch_limits import (
    GpuLimits,
    KernelResources,
    depthwise_rejection,
    residency_rejection,
    shared_bytes,
    tiled_rejection,
)
from split_infer_ros.vision_ops.schedules import SPACES, ConvolutionTemplate

RESULTS = Path(__file__).parents[2] / "docs" / "results"
MAX_COMPILE_S = 10.0
DTYPES = {"fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32, "ieee": torch.float32}
EXTRA_BYTES = 4096  # at most, for a transposed layout or a barrier beside the tiles
KERNEL = 5
TILED = [ConvolutionTemplate.POINTWISE, ConvolutionTemplate.WINDOWED]  # templates that multiply tiles
MIN_ACCEPTED = {  # rows of the sweeps, which are even samples of all schedules
    ConvolutionTemplate.POINTWISE: 500,
    ConvolutionTemplate.DEPTHWISE: 500,
    ConvolutionTemplate.WINDOWED: 100,
}


class SweepRow(NamedTuple):
    """A row of a table; ``shared_bytes`` is None if the compiler took too long."""

    template: ConvolutionTemplate
    target: int
    precision: str
    kernel: int
    schedule: Config
    compile_s: float
    shared_bytes: int | None

    @property
    def can_be_launched(self) -> bool:
        """Whether it fits the target and compiled quickly."""
        fits = self.shared_bytes is not None and self.shared_bytes <= SHARED_BYTES[self.target]
        return fits and self.compile_s <= MAX_COMPILE_S

    @property
    def rejection(self) -> str | None:
        """Why the formulas reject the schedule; None if they accept it."""
        if self.template is ConvolutionTemplate.DEPTHWISE:
            return depthwise_rejection(self.schedule, self.kernel)
        gpu = GpuLimits(self.target, SHARED_BYTES[self.target])
        return tiled_rejection(self.schedule, gpu, DTYPES[self.precision], tf32=self.precision == "tf32")


def sweep_rows(template: ConvolutionTemplate) -> list[SweepRow]:
    knobs = SPACES[template].knobs
    with (RESULTS / f"triton_{template.value}.csv").open(newline="") as file:
        return [
            SweepRow(
                template=template,
                target=int(row["target"]),
                precision=row["precision"],
                kernel=int(row["kernel"]),
                schedule={name: next(value for value in knobs[name] if str(value) == row[name]) for name in knobs},
                compile_s=float(row["compile_s"].replace(">", "")),
                shared_bytes=int(row["shared_bytes"]) if row["shared_bytes"] else None,
            )
            for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize("template", ConvolutionTemplate)
def test_accepted_schedules_can_be_launched(template: ConvolutionTemplate) -> None:
    accepted = [row for row in sweep_rows(template) if row.rejection is None]
    assert len(accepted) > MIN_ACCEPTED[template]
    assert all(row.can_be_launched for row in accepted)


@pytest.mark.parametrize("template", ConvolutionTemplate)
def test_few_launchable_schedules_are_rejected(template: ConvolutionTemplate) -> None:
    launchable = [row for row in sweep_rows(template) if row.can_be_launched]
    assert sum(row.rejection is not None for row in launchable) < 0.05 * len(launchable)
    assert any(not row.can_be_launched for row in sweep_rows(template)), "otherwise no formula is needed"


@pytest.mark.parametrize("template", TILED)
def test_shared_memory_equals_the_compilers_layout(template: ConvolutionTemplate) -> None:
    for row in sweep_rows(template):
        if row.shared_bytes is None or row.target < 80:  # older targets transpose layouts instead of copying ahead
            continue
        gpu, dtype = GpuLimits(row.target, SHARED_BYTES[row.target]), DTYPES[row.precision]
        has_tensor_cores = gpu.has_tensor_cores_for(dtype, tf32=row.precision == "tf32")
        expected = shared_bytes(row.schedule, row.target, dtype.itemsize, on_tensor_cores=has_tensor_cores)
        tile = int(row.schedule["pixels"]) * int(row.schedule["channels"])
        results = {tile * nbytes for nbytes in (4, dtype.itemsize)}  # which are transposed at the end
        assert abs(row.shared_bytes - expected) <= EXTRA_BYTES or row.shared_bytes in results


@pytest.mark.parametrize(
    ("kernel", "target", "words"),
    [
        (KernelResources(registers=128, shared_bytes=31 << 10, warps=8), 87, None),
        (KernelResources(registers=129, shared_bytes=31 << 10, warps=8), 87, "take 69,632 registers; .* has 65,536"),
        (KernelResources(registers=64, shared_bytes=32 << 10, warps=4), 75, None),
        (KernelResources(registers=64, shared_bytes=33 << 10, warps=4), 75, "67,584 bytes .* has 65,536"),
        (KernelResources(registers=64, shared_bytes=82 << 10, warps=4), 87, "169,984 bytes .* has 167,936"),
        (KernelResources(registers=64, shared_bytes=82 << 10, warps=4), 90, None),
    ],
)
def test_programs_that_do_not_fit_are_not_resident_together(
    kernel: KernelResources, target: int, words: str | None
) -> None:
    rejection = residency_rejection(kernel, MULTIPROCESSORS[target])
    assert rejection is None if words is None else rejection and re.search(words, rejection)


@pytest.mark.parametrize("target", SHARED_BYTES)
@pytest.mark.parametrize(("precision", "dtype"), DTYPES.items())
def test_default_schedules_can_always_be_launched(target: int, precision: str, dtype: torch.dtype) -> None:
    gpu = GpuLimits(target, SHARED_BYTES[target])
    for template in TILED:
        assert tiled_rejection(SPACES[template].default, gpu, dtype, tf32=precision == "tf32") is None
    assert depthwise_rejection(SPACES[ConvolutionTemplate.DEPTHWISE].default, KERNEL) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pixels": 128, "channels": 128, "depth": 64, "unrolled": 4}, "786,432 bytes .* has 232,448"),
        ({"pixels": 128, "channels": 128, "depth": 16, "warps": 2}, "holds 256 sums; more than 128"),
    ],
)
def test_a_rejection_names_what_is_too_much(changes: Config, words: str) -> None:
    schedule = {**SPACES[ConvolutionTemplate.POINTWISE].default, **changes}
    rejection = tiled_rejection(schedule, GpuLimits(90, SHARED_BYTES[90]), torch.float32, tf32=True)
    assert rejection is not None
    assert re.search(words, rejection)
