"""Finds the test files that are nearest to a change, by what files import, and chooses as many as there is time for."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

IMPORTABLE = ("split_infer_ros", "test", "benchmarks", "scripts")  # folders whose files are looked at
FLAT = ("test/helpers", "test", "scripts")  # their modules are imported by their bare names
RUN_BY_NAME = re.compile(r"\b(?:split_infer_ros|benchmarks)(?:\.\w+)+")
UNKNOWN_S = 10.0  # of a file that has no recorded duration
OF_BENCHMARKS = "test/benchmarks/"
MEASURED = ("benchmarks/", "split_infer_ros/", OF_BENCHMARKS)  # folders of benchmarks and of what they measure
DIRECT = 2  # imports between a test, its benchmark and what that measures directly
SLOW_S = 30.0  # of the slow tests of a benchmark, whose durations are not recorded
# Code in strings counts as well: tests have other processes run it. So do names of modules that are run by name.
IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^\n(]+)|import ([\w.]+))", re.MULTILINE)


@dataclass(frozen=True)
class Near:
    """One test file.

    Attributes:
        path: of the file, relative to the checkout.
        distance: number of imports between the file and what has changed; 0 if the file itself has changed.
        seconds: how long its tests take.
        with_slow: whether its slow tests run too: they run a benchmark that has changed, or whose subject has.
    """

    path: str
    distance: int
    seconds: float
    with_slow: bool = False


class Imports:
    """The imports between the Python files of a checkout.

    Args:
        root: the checkout.
    """

    def __init__(self, root: Path) -> None:
        paths = [path.relative_to(root) for folder in IMPORTABLE for path in sorted((root / folder).rglob("*.py"))]
        self._text = {str(path): (root / path).read_text() for path in paths}
        by_name = {module_name(path): str(path) for path in paths}
        self._importers: dict[str, set[str]] = {}
        for path, text in self._text.items():
            for name in imported_names(text):
                # "from a.b import c" may import the module a.b.c, or something of a.b
                found = by_name.get(name) or by_name.get(name.rpartition(".")[0])
                if found is not None:
                    self._importers.setdefault(found, set()).add(path)
            for conftest in (folder / "conftest.py" for folder in Path(path).parents):
                if is_test(path) and str(conftest) in self._text:
                    self._importers.setdefault(str(conftest), set()).add(path)

    def distances(self, changed: Collection[str]) -> dict[str, int]:
        """Returns the distance of each test file that depends on one of these paths, relative to the checkout."""
        reached = dict.fromkeys(changed, 0) | dict.fromkeys(self._that_name(changed), 1)
        ring = reached.copy()
        # Fixtures import much of the package. Through them, each of its modules would be near to every test.
        is_in_tests = any(path.startswith("test/") for path in changed)

        def spreads(path: str) -> bool:
            return is_in_tests or Path(path).name != "conftest.py"

        while ring:
            further = {
                importer: steps + 1
                for path, steps in sorted(ring.items(), key=lambda item: -item[1])  # the nearest decides
                if spreads(path)
                for importer in self._importers.get(path, ())
                if importer not in reached
            }
            reached |= further
            ring = further
        return {path: steps for path, steps in reached.items() if path in self._text and is_test(path)}

    def runs_a_benchmark(self, path: str) -> bool:
        """Returns whether a test file has slow tests of a benchmark."""
        return path.startswith(OF_BENCHMARKS) and "mark.slow" in self._text[path]

    def _that_name(self, changed: Collection[str]) -> Iterator[str]:
        """Yields the test files that name a changed file, or its outermost folder, where that is no Python file."""
        others = [Path(path) for path in changed if not path.endswith(".py")]
        names = {path.name for path in others} | {f'"{path.parts[0]}"' for path in others}
        for path, text in self._text.items():
            if is_test(path) and any(name in text for name in names):
                yield path


def nearest(root: Path, changed: Collection[str], seconds: Mapping[str, float]) -> list[Near]:
    """Returns the test files that depend on a change. The nearest come first; of equally near ones, the shortest.

    Args:
        root: the checkout.
        changed: paths relative to it.
        seconds: how long each test file takes without its slow tests, as far as that was recorded.
    """
    imports = Imports(root)
    measured = imports.distances([path for path in changed if path.startswith(MEASURED)])
    near = []
    for path, steps in imports.distances(changed).items():
        with_slow = measured.get(path, math.inf) <= DIRECT and imports.runs_a_benchmark(path)
        near.append(Near(path, steps, seconds.get(path, UNKNOWN_S) + SLOW_S * with_slow, with_slow))
    return sorted(near, key=lambda each: (each.distance, each.seconds, each.path))


def choose(near: Sequence[Near], budget_s: float) -> tuple[list[Near], list[Near]]:
    """Returns the files to run, which take ``budget_s`` seconds at most, and those that are left out."""
    chosen, left_out, total = [], [], 0.0
    for each in near:
        if total + each.seconds <= budget_s:
            chosen.append(each)
            total += each.seconds
        else:
            left_out.append(each)
    return chosen, left_out


def module_name(path: Path) -> str:
    """Returns the name by which the module of a path, relative to the checkout, is imported."""
    for folder in FLAT:
        if path.is_relative_to(folder):
            path = path.relative_to(folder)
            break
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(text: str) -> Iterator[str]:
    """Yields the dotted names that a module imports, inside functions too."""
    for package, names, module in IMPORT.findall(text):
        if module:
            yield module
        yield from (f"{package}.{name}" for name in re.findall(r"\w+", names))
    yield from RUN_BY_NAME.findall(text)


def is_test(path: str) -> bool:
    """Returns whether pytest takes tests from a file."""
    return path.startswith("test/") and Path(path).name.startswith("test_")
