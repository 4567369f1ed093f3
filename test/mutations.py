"""Removes each call that orders work, one at a time, and says which test on the simulated GPU notices.

    python test/mutations.py --log build/mutations.jsonl --table build/mutations.md [--only streams.py]

docs/concepts/simulated_gpu.md holds the table of the last run.

It takes an hour or more, and is no part of the tests. Each mutant lives in a process of its own, which imports one file
of the package changed; nothing is written to the tree but the table.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TEST = Path(__file__).parent
ROOT = TEST.parent
FILES = {
    "streams and captures": ["runtime/streams.py", "runtime/captures.py"],
    "buffers": ["buffers/memory.py", "buffers/gpu_memory.py", "buffers/slot_memory.py"],
    "their users": [
        "server/plan.py",
        "preprocessing/device_preprocessor.py",
        "preprocessing/image_buffer.py",
        "server/execution/merge_runner.py",
        "server/executor.py",
        "server/batch.py",
        "server/execution/forked_graphs.py",
        "engines/cuda/model_streams.py",
        "weight_streaming/copy_stage.py",
        "weight_streaming/device_supply.py",
        "weight_streaming/lockstep_stage.py",
        "weight_streaming/mapped_stage.py",
    ],
}
TESTS = [
    "runtime/test_captures_on_simulated_gpu.py",
    "preprocessing/test_preprocessor_on_simulated_gpu.py",
    "engines/cuda/test_forks_on_simulated_gpu.py",
    "buffers/test_memory.py",
    "buffers/test_slot_memory.py",
    "weight_streaming/test_streaming_on_simulated_gpu.py",
    "server/test_pipeline_on_simulated_gpu.py",
    "server/test_tenants_on_simulated_gpu.py",
]
FIRST = {  # which test is likely to notice
    "server": "tenants",
    "engines": "tenants",
    "preprocessing": "preprocessor",
    "weight_streaming": "streaming",
    "buffers": "memory",
}
# Calls that order work, if nothing is done with what they return.
CALLS = {
    "synchronize", "record", "wait", "wait_event", "wait_for", "wait_stream", "attach", "give_to_device",
    "give_to_host", "release", "collect", "disable", "enable", "_free_oldest", "_leave_recording",
    "graphsafe_set_state", "_cuda_endAllocateToPool", "_cuda_releasePool",
}  # fmt: skip
CONTEXTS = {"_WHOLE_DEVICE", "without_collector", "keeping_pools", "holding", "inference_mode", "work", "stream"}
FENCES = {"fence", "current_fence"}  # which then stand for nothing
NO_FENCE = "__import__('split_infer_ros.runtime.streams', fromlist=['Fence']).Fence()"
LIMIT_S = 400

# Faults that were once mended, by number and name: what the mend changed, back as it was.
REVERTED = {
    "2, memory made in inference mode is copied to outside of it": {
        "runtime/streams.py": [('with inference_mode(), self.work("copy")', 'with self.work("copy")')],
        "buffers/gpu_memory.py": [("torch.inference_mode(False)", "__import__('contextlib').nullcontext()")],
    },
    "2, an exception ends the thread that copies": {
        "runtime/streams.py": [('with inference_mode(), self.work("copy")', 'with self.work("copy")')],
        "buffers/gpu_memory.py": [("torch.inference_mode(False)", "__import__('contextlib').nullcontext()")],
        "weight_streaming/copy_stage.py": [
            (
                "        except Exception as error:\n            return error",
                "        except StreamError as error:\n            return error",
            )
        ],
    },
    "3, a pipeline is restarted outside of inference mode": {
        "server/plan.py": [
            ("            with inference_mode():\n                for", "            if True:\n                for")
        ],
        "buffers/gpu_memory.py": [("torch.inference_mode(False)", "__import__('contextlib').nullcontext()")],
    },
    "4, streams are torch's 32": {
        "runtime/streams.py": [
            ("self._stream = torch.cuda.ExternalStream(handle, device)", "self._stream = torch.cuda.Stream(device)")
        ]
    },
    "5, garbage is collected inside of a recording": {
        "runtime/captures.py": [("without_collector(may_skip=not warm_ups), ", "")],
        "engines/cuda/cuda_graphs.py": [("with without_collector():", "if True:")],
    },
    "8, the device is synchronised beside a recording": {
        "runtime/captures.py": [
            ("with _WHOLE_DEVICE, without_collector", "with without_collector"),
            ("with _WHOLE_DEVICE:\n            torch.cuda.synchronize", "if True:\n            torch.cuda.synchronize"),
        ]
    },
    "10, memory of cycles is not given back": {"runtime/captures.py": [("    gc.collect()\n    if", "    if")]},
    "17, work does not wait for what its inputs are made by": {
        "runtime/streams.py": [("        self._stream.wait_stream(torch.cuda.current_stream(self.device.index))\n", "")]
    },
    "18, a buffer goes while the GPU reads it": {
        "preprocessing/image_buffer.py": [("        self.unused.wait()", "        pass")]
    },
}


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        group: what the file belongs to.
        place: the file and the function, or the number of a fault.
        removed: the call that is removed, or the fault's name.
        sources: the changed source of each file.
    """

    group: str
    place: str
    removed: str
    sources: dict[str, str]


def mutants() -> Iterator[Mutant]:
    """Every one that there is."""
    for group, files in FILES.items():
        for file in files:
            tree = ast.parse((ROOT / "split_infer_ros" / file).read_text())
            functions = dict(_functions(tree))
            for number, node in enumerate(ast.walk(tree)):
                for removed, changed in _changes(node):
                    other = copy.deepcopy(tree)
                    target = next(each for index, each in enumerate(ast.walk(other)) if index == number)
                    target.__dict__.update(changed)
                    source = ast.unparse(ast.fix_missing_locations(other))
                    # Names of functions stay true longer than line numbers.
                    yield Mutant(group, f"{file}, {functions[node]}", removed.splitlines()[0], {file: source})
    for fault, files_changed in REVERTED.items():
        sources = {}
        for file, changes in files_changed.items():
            source = (ROOT / "split_infer_ros" / file).read_text()
            for mended, before in changes:
                assert mended in source, f"fault {fault}: {file} no longer has {mended!r}"
                source = source.replace(mended, before)
            sources[file] = source
        yield Mutant("faults", "fault " + fault.split(",")[0], fault.split(", ", 1)[1], sources)


def _functions(node: ast.AST, name: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Yields each node below this one with the function or class that it is in. A function is in itself."""
    for child in ast.iter_child_nodes(node):
        is_named = isinstance(child, ast.FunctionDef | ast.ClassDef)
        inner = f"{name}.{child.name}".lstrip(".") if is_named else name  # type: ignore[attr-defined]
        yield child, inner
        yield from _functions(child, inner)


def _changes(node: ast.AST) -> Iterator[tuple[str, dict[str, object]]]:
    """What is removed from a node, and its fields without it."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _name(node.value) in CALLS:
        yield ast.unparse(node.value), {"value": ast.Constant(None)}
    if isinstance(node, ast.With):
        for index, item in enumerate(node.items):
            if _name(item.context_expr) in CONTEXTS:
                rest = node.items[:index] + node.items[index + 1 :]
                nothing = ast.withitem(ast.parse("__import__('contextlib').nullcontext()").body[0].value)  # type: ignore[attr-defined]
                yield f"with {ast.unparse(item)}", {"items": rest or [nothing]}
    if isinstance(node, ast.FunctionDef):
        for index, decorator in enumerate(node.decorator_list):
            if _name(decorator) in CONTEXTS:
                yield (
                    f"@{ast.unparse(decorator)}",
                    {"decorator_list": node.decorator_list[:index] + node.decorator_list[index + 1 :]},
                )
    given = node.value if isinstance(node, ast.Return | ast.Assign | ast.AnnAssign) else None
    if isinstance(given, ast.Call) and _name(given) in FENCES:
        yield ast.unparse(node), {"value": ast.parse(NO_FENCE).body[0].value}  # type: ignore[attr-defined]
    if isinstance(node, ast.Call):
        for index, argument in enumerate(node.args):
            if isinstance(argument, ast.Call) and _name(argument) in FENCES:
                arguments = [*node.args]
                arguments[index] = ast.parse(NO_FENCE).body[0].value  # type: ignore[attr-defined]
                yield f"{ast.unparse(argument)} of {ast.unparse(node)}", {"args": arguments}
        for keyword in node.keywords:
            if keyword.arg == "capture_error_mode":
                yield ast.unparse(keyword), {"keywords": [each for each in node.keywords if each is not keyword]}


def _name(node: ast.AST) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules from other source."""

    def __init__(self, mutant: Mutant) -> None:
        self._sources = {
            "split_infer_ros." + file.removesuffix(".py").replace("/", "."): (file, source)
            for file, source in mutant.sources.items()
        }

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        return importlib.util.spec_from_loader(name, self) if name in self._sources else None

    def exec_module(self, module: object) -> None:
        file, source = self._sources[module.__name__]
        exec(compile(source, str(ROOT / "split_infer_ros" / file), "exec"), module.__dict__)


def verdict(mutant: Mutant) -> str:
    """The test that notices it, or ``survives``."""
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            os.setsid()
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            os._exit(_test(mutant))
        end = time.monotonic() + LIMIT_S
        while (found := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "hangs"
            time.sleep(0.2)
        output.seek(0)
        lines = output.read().splitlines()
    if os.waitstatus_to_exitcode(found[1]) == 0:
        return "survives"
    named = [line.split("::")[-1].split(" ")[0] for line in lines if line.startswith(("FAILED", "ERROR"))]
    return named[0] if named else "a test that hangs" if any("Timeout" in line for line in lines) else lines[-1]


def _test(mutant: Mutant) -> int:
    import pytest

    sys.meta_path.insert(0, _Mutated(mutant))
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "--timeout", "60", "--no-header", "-rfE"]
    likely = FIRST.get(mutant.place.split("/")[0], "captures")
    return int(
        pytest.main([*arguments, *(str(TEST / name) for name in sorted(TESTS, key=lambda name: likely not in name))])
    )


def main() -> None:
    """Tries every mutant, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, help="where the table goes, in Markdown")
    parser.add_argument(
        "--log",
        type=Path,
        help="where each verdict goes as it comes, a line of JSON each; one found there is not tried again",
    )
    parser.add_argument("--only", default="", help="places that hold this text")
    parser.add_argument("--list", action="store_true", help="say what there is, and try nothing")
    chosen = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(TEST / "helpers")]
    os.environ["PYTHONPATH"] = str(ROOT)
    all_of_them = [mutant for mutant in mutants() if chosen.only in mutant.place]
    if chosen.list:
        for mutant in all_of_them:
            print(f"{mutant.place} {mutant.removed}")
        return
    import hypothesis  # noqa: F401  # once for all mutants
    import pytest  # noqa: F401
    import torch._dynamo  # noqa: F401

    known = {}
    if chosen.log and chosen.log.exists():
        known = {tuple(entry[:3]): entry[3] for entry in map(json.loads, chosen.log.read_text().splitlines())}
    rows = []
    for mutant, number in zip(all_of_them, numbers_of(all_of_them), strict=True):
        key = mutant.place, mutant.removed, number
        found = known.get(key) or verdict(mutant)
        rows.append((mutant, found))
        print(f"{mutant.place} {mutant.removed}: {found}", flush=True)
        if chosen.log and key not in known:
            with chosen.log.open("a") as log:
                log.write(json.dumps([*key, found]) + "\n")
    caught = sum(found != "survives" for _, found in rows)
    print(f"{caught} of {len(rows)} are noticed.")
    if chosen.table:
        chosen.table.write_text(_table(rows))


def numbers_of(chosen: Sequence[Mutant]) -> Iterator[int]:
    """Yields for each mutant how many before it have the same place and the same call."""
    seen: Counter[tuple[str, str]] = Counter()
    for mutant in chosen:
        yield seen[mutant.place, mutant.removed]
        seen[mutant.place, mutant.removed] += 1


def _table(rows: list[tuple[Mutant, str]]) -> str:
    lines = ["| place | removed | noticed by |", "|---|---|---|"]
    for mutant, found in rows:
        lines.append(f"| `{mutant.place}` | `{mutant.removed}` | {found} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
