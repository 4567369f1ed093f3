"""Runs a benchmark, or another module of this folder: ``python benchmarks NAME [ARGS]``.

A benchmark is a folder with a ``__main__.py``. A module that a benchmark runs in a process of its own has a dotted
name, such as ``ros.feed``. Both have a function ``main``. Python searches this folder for modules, and not the working
folder.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> int:
    """Runs the module that the first argument names, with the arguments after it. Returns its exit code."""
    commands = sorted(path.parent.name for path in FOLDER.glob("*/__main__.py"))
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    path = FOLDER.joinpath(*name.split("."), *(["__main__"] if name in commands else [])).with_suffix(".py")
    if not name or not path.is_file():
        print(f"Usage: python benchmarks NAME [ARGS]\nNAME is one of: {', '.join(commands)}", file=sys.stderr)
        return 2
    sys.argv[:2] = [f"bench {name}"]
    module = import_module(f"benchmarks.{name}.__main__" if name in commands else f"benchmarks.{name}")
    return int(module.main() or 0)


if __name__ == "__main__":
    sys.exit(main())
