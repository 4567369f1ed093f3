"""The pieces into which everything that needs a GPU is divided: each ends within 9 minutes, all within 25."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_steps import ROOT, Step, is_there

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
    return [Step("compute-sanitizer memcheck", command, 150.0, uncached, needs=["compute-sanitizer"])]


def together(*parts: Callable[[Path], list[Step]]) -> Callable[[Path], list[Step]]:
    """The steps of several parts, one part after the other."""
    return lambda out: [step for part in parts for step in part(out)]


PIECES: Mapping[int, Piece] = {
    1: Piece(
        "tests of memory, operators, timing and placement",
        360.0,
        Tests(
            {
                "memory": 100,
                "memory_cost": 90,
                "co_runs": 120,
                "vision_ops": 120,
                "convolution": 180,
                "operator_placement": 90,
                "timing": 90,
            }
        ),
    ),
    2: Piece(
        "tests of pipelines, tenants and streamed weights",
        380.0,
        Tests(
            {
                "backbone": 180,
                "copies": 90,
                "model_memory": 120,
                "changes": 120,
                "weight_streaming": 90,
                "serving": 120,
                "killed": 90,
                "tuning": 150,
            }
        ),
    ),
    3: Piece(
        "sanitizers of streams and of memory",
        250.0,
        together(
            memcheck,  # the shortest as a rule
            Tests(
                {"weight_streaming": 70, "changes": 110, "serving": 90},
                SANITIZER,
                " under the stream sanitizer",
                UNSANITIZED,
            ),
        ),
    ),
    4: Piece(
        "benchmarks of memory and operators",
        180.0,
        together(
            bench("memory_policies", 90, "--quick"),
            bench("co_optimisation", 75, "--quick"),
            bench("vision_ops", 100, "--quick"),
        ),
    ),
    5: Piece(
        "benchmarks of splitting and tuning",
        160.0,
        together(
            bench("unified_splitting", 110, "--quick", "--batch", "16", "64", "--seconds", "26"),
            bench("tuning", 100, "--quick", "--models", "mobilenet_v2", "squeezenet1_0", needs=["sklearn"]),
        ),
    ),
    6: Piece(
        "benchmarks of tenants and streamed weights",
        170.0,
        together(
            bench(
                "multi_tenant", 120, "--requests", "100", "--load", "1", "3", "--alike", "resnet18", "--seconds", "60"
            ),
            bench("demand_layering", 90, "--quick"),
        ),
    ),
}
