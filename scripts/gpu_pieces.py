"""Divides everything that needs a GPU into pieces. Each piece ends within 9 minutes, all within 32."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_steps import ROOT, Step, is_there

STACKS_S = 45  # if a test runs longer, the log gets its stacks
SANITIZER = {"TORCH_CUDA_SANITIZER": "1"}
# Tests with these parts in their names are left out under the sanitizer. It makes each operation slow and keeps memory,
# so tests of load and of freed memory would mean nothing.
UNSANITIZED = ("given_back", "come_and_go", "at_once")


@dataclass(frozen=True)
class Piece:
    """Steps that run one after another.

    Attributes:
        title: the title, for people.
        seconds: the budget of all steps together.
        steps: returns the steps, given the folder of results.
    """

    title: str
    seconds: float
    steps: Callable[[Path], Sequence[Step]]


@dataclass(frozen=True)
class Tests:
    """Makes a step for each file of test/gpu.

    Each runs in a process of its own, so a sticky CUDA error ends with its file.

    Attributes:
        seconds: the budget of each file, by its name without ``test_`` and ``_on_gpu``.
        environment: variables to set.
        suffix: tells apart several runs of one file.
        left_out: tests with one of these parts in their names are not run.
    """

    seconds: Mapping[str, float]
    environment: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""
    left_out: Sequence[str] = ()

    def __call__(self, out: Path) -> list[Step]:
        return [self._step(out, name, seconds) for name, seconds in self.seconds.items()]

    def _step(self, out: Path, name: str, seconds: float) -> Step:
        notes = out / f"test_{name}{self.suffix.replace(' ', '_')}.jsonl"
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "gpu_notes"]
        command += ["-o", f"faulthandler_timeout={STACKS_S}"]
        command += ["--notes", str(notes), str(ROOT / "test" / "gpu" / f"test_{name}_on_gpu.py")]
        if self.left_out:
            command += ["-k", " and ".join(f"not {part}" for part in self.left_out)]
        return Step(f"tests of {name}{self.suffix}", command, seconds, self.environment, notes=notes)


def bench(name: str, seconds: float, *arguments: str, needs: Sequence[str] = ()) -> Callable[[Path], list[Step]]:
    """Returns a function that makes the step of a benchmark.

    It writes JSON, and a picture if matplotlib is installed.
    """

    def steps(out: Path) -> list[Step]:
        report = out / f"{name}.json"
        command = [sys.executable, str(ROOT / "benchmarks"), name, *arguments, "--json", str(report)]
        if is_there("matplotlib"):
            command += ["--picture", str(out / f"{name}.png")]
        return [Step(f"benchmark {name}", command, seconds, needs=needs, report=report)]

    return steps


def memcheck(out: Path) -> list[Step]:
    """Returns the step of a small pipeline under compute-sanitizer, which sees each access of each kernel."""
    command = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", "--report-api-errors", "no"]
    command += [sys.executable, str(ROOT / "scripts" / "gpu_small_pipeline.py")]
    # Without torch's cache, each tensor has an allocation of its own, so an access beyond it is seen.
    uncached = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    return [Step("compute-sanitizer memcheck", command, 90.0, uncached, needs=["compute-sanitizer"])]


def together(*parts: Callable[[Path], list[Step]]) -> Callable[[Path], list[Step]]:
    """Returns a function that makes the steps of several parts, one part after another."""
    return lambda out: [step for part in parts for step in part(out)]


# The most telling pieces come first. Tests and benchmarks take turns, so a run that is cut short has some of both.
PIECES: Mapping[int, Piece] = {
    1: Piece(
        "tests of memory, pipelines, operators and streamed weights",
        320.0,
        Tests({"memory": 60, "backbone": 180, "vision_ops": 90, "weight_streaming": 70, "copies": 80}),
    ),
    2: Piece(
        "benchmarks of splitting and of memory policies",
        330.0,
        together(
            bench("unified_splitting", 240, "--quick", "--batch", "16", "--seconds", "26"),
            bench("memory_policies", 90, "--quick"),
        ),
    ),
    3: Piece(
        "tests of tenants, changes, timing and killed processes",
        330.0,
        Tests({"serving": 130, "changes": 140, "model_memory": 100, "timing": 70, "killed": 90}),
    ),
    4: Piece(
        "benchmarks of tenants and operators",
        200.0,
        together(
            bench(
                "multi_tenant", 110, "--requests", "100", "--load", "1", "3", "--alike", "resnet18", "--seconds", "60"
            ),
            bench("vision_ops", 90, "--quick"),
        ),
    ),
    5: Piece(
        "tests of placement, costs, co-runs, tuning, convolutions, merged layers and precisions",
        260.0,
        Tests(
            {
                "operator_placement": 60,
                "memory_cost": 70,
                "co_runs": 80,
                "tuning": 100,
                "convolution": 150,
                "merged_layers": 70,
                "precision": 60,
            }
        ),
    ),
    6: Piece(
        "benchmarks of tuning, co-runs and streamed weights",
        160.0,
        together(
            bench("demand_layering", 80, "--quick"),
            bench("co_optimisation", 70, "--quick"),
            bench("tuning", 90, "--quick", "--models", "mobilenet_v2", "squeezenet1_0", needs=["sklearn"]),
        ),
    ),
    7: Piece(
        "sanitizers of memory and of streams",
        320.0,
        together(
            memcheck,
            Tests(
                {"weight_streaming": 70, "serving": 150, "changes": 80},
                SANITIZER,
                " under the stream sanitizer",
                UNSANITIZED,
            ),
        ),
    ),
}
