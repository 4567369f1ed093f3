"""The pieces into which everything that needs a GPU is divided: each ends within 9 minutes, all within 32."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_steps import ROOT, Step, is_there

STACKS_S = 45  # after so long, the log gets the stacks of a test that still runs
SANITIZER = {"TORCH_CUDA_SANITIZER": "1"}
# Parts of names of tests that are left out under the sanitizer. It makes each operation slow and keeps memory, so tests
# of load and of freed memory would say nothing.
UNSANITIZED = ("given_back", "come_and_go", "at_once")


@dataclass(frozen=True)
class Piece:
    """Steps that run one after the other.

    Attributes:
        title: for people.
        seconds: the budget of all steps together.
        steps: gives them, for the folder in which results are left.
    """

    title: str
    seconds: float
    steps: Callable[[Path], Sequence[Step]]


@dataclass(frozen=True)
class Tests:
    """Files of test/gpu, each in a process of its own, so that an error that sticks to CUDA ends with its file.

    Attributes:
        seconds: the budget of each file, by its name without ``test_`` and ``_on_gpu``.
        environment: variables that are set.
        suffix: distinguishes several runs of one file.
        left_out: parts of the names of tests that are not run.
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
    """A benchmark of benchmarks/, with its JSON, and its picture where matplotlib is there."""

    def steps(out: Path) -> list[Step]:
        report = out / f"{name}.json"
        command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *arguments, "--json", str(report)]
        if is_there("matplotlib"):
            command += ["--picture", str(out / f"{name}.png")]
        return [Step(f"benchmark {name}", command, seconds, needs=needs, report=report)]

    return steps


def memcheck(out: Path) -> list[Step]:
    """A small pipeline under compute-sanitizer, which sees each access of each kernel."""
    command = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", "--report-api-errors", "no"]
    command += [sys.executable, str(ROOT / "scripts" / "gpu_small_pipeline.py")]
    # Without torch's cache each tensor is an allocation of its own, so that an access beyond it is seen.
    uncached = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    return [Step("compute-sanitizer memcheck", command, 90.0, uncached, needs=["compute-sanitizer"])]


def together(*parts: Callable[[Path], list[Step]]) -> Callable[[Path], list[Step]]:
    """The steps of several parts, one part after the other."""
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
        "tests of placement, costs, co-runs, tuning and convolutions",
        240.0,
        Tests({"operator_placement": 60, "memory_cost": 70, "co_runs": 80, "tuning": 100, "convolution": 150}),
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
