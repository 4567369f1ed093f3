"""Finds the shared library for a C file of this package, and compiles it if it is not installed."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.cache import cache_folder
from split_infer_ros.runtime.files import write_whole

COMPILERS = ("cc", "gcc", "clang")
COMPILE_S = 60.0


def native_library(source: Path) -> Path:
    """Returns the path of the shared library for a C file.

    The build of the package installs the library beside the file. If the package runs from its source tree, the file is
    compiled once into the user's cache folder. The library's name there contains a hash of the file.

    Args:
        source: the C file.

    Raises:
        ConfigurationError: there is no library, and it cannot be compiled.
    """
    installed = source.with_name(f"lib{source.stem}.so")
    if installed.exists():
        return installed
    code = source.read_bytes()
    name = f"{source.stem}-{platform.machine()}-{hashlib.sha256(code).hexdigest()[:16]}.so"
    cached = cache_folder() / "native" / name
    if not cached.exists():
        try:
            write_whole(cached, _compiled(source))
        except OSError as error:
            raise ConfigurationError(f"{cached}, the library of {source.name}, cannot be written: {error}.") from error
    return cached


def _compiled(source: Path) -> bytes:
    compiler = next(filter(None, map(shutil.which, [*os.environ.get("CC", "").split()[:1], *COMPILERS])), None)
    if compiler is None:
        raise ConfigurationError(
            f"{source.name} was not built with this package, and there is no C compiler: install gcc, or build the "
            "package with colcon or pip."
        )
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "made.so")
        command = [compiler, "-std=c99", "-O2", "-shared", "-fPIC", "-o", str(made), str(source)]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigurationError(f"{compiler} cannot compile {source.name}: {error}.") from error
        if run.returncode != 0:
            raise ConfigurationError(f"{compiler} cannot compile {source.name}: {run.stderr.strip()[:300]}")
        return made.read_bytes()
