"""The command that starts another Python process. The package starts all of its Python processes with it."""

from __future__ import annotations

import sys

from split_infer_ros.runtime.search_path import PACKAGE_FOLDER, search_path

# Only `sys` is imported before the path is set. It is built in, so Python searches no folder for it. This package comes
# from the folder where the starting process has it, even if another version is installed.
_BOOTSTRAP = """
import sys
package_folder, path, module = sys.argv[1:4]
del sys.argv[1:4]
path = path.split(chr(10))
sys.path[:] = [package_folder, *path]
import split_infer_ros
sys.path[:] = path
from runpy import run_module
run_module(module, run_name="__main__", alter_sys=True)
"""


def python_command(module: str) -> list[str]:
    """Returns the command that runs a module as ``python -m`` does, without searching the working folder.

    The module gets the search path that this process has at the time of the call; see ``search_path``. Arguments of the
    module may be appended to the command.

    Args:
        module: the module's full name.
    """
    flags = ["-E"]  # ignores PYTHONPATH, because the bootstrap sets the path
    if sys.flags.no_user_site:
        flags.append("-s")
    if sys.version_info >= (3, 11):
        flags.append("-P")  # otherwise `-c` has the working folder in its path until the bootstrap begins
    return [sys.executable, *flags, "-c", _BOOTSTRAP, PACKAGE_FOLDER, "\n".join(search_path()), module]
