"""Where this process, and the processes that it starts, find Python modules: never in the working folder.

The working folder may hold anything, such as downloads beside a model. Python searches it when PYTHONPATH has an empty
entry, and for ``python -m`` and ``python -c``. A file ``random.py`` there would run in place of Python's own.

A folder that the user named in PYTHONPATH is searched, unless it is the working folder. That one is searched once the
user has allowed to run code of theirs. It comes after all other folders, so that it hides no other module.

This module is imported before the search path is clean. It only imports what Python itself has imported already.
"""

import os
import site
import sys

USER_PATH = "SPLIT_INFER_ROS_USER_PATH"  # a variable: PYTHONPATH as the user set it
PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def drop_working_folder(*named: str) -> None:
    """Takes the working folder, and all that is relative to it, out of this process's search path.

    It changes the environment likewise, for processes that libraries start.

    Args:
        named: folders that count as named by the user, in addition to those of PYTHONPATH.
    """
    user_path = os.environ.get("PYTHONPATH", "")
    os.environ[USER_PATH] = os.pathsep.join([os.environ.get(USER_PATH, user_path), *named])
    sys.path[:] = search_path()
    os.environ.update(PYTHONPATH=os.pathsep.join(filter(_is_safe, user_path.split(os.pathsep))), PYTHONSAFEPATH="1")


def search_path() -> list[str]:
    """Returns this process's search path without the working folder, and without relative folders.

    The folder of this package and those of the Python installation always stay. A source tree that is the working
    folder comes last.
    """
    installed = {os.path.dirname(os.__file__), *site.getsitepackages()}
    path = [entry for entry in sys.path if _is_safe(entry) or entry in installed]
    return path if PACKAGE_FOLDER in path else [*path, PACKAGE_FOLDER]


def child_environment() -> dict[str, str]:
    """Returns the variables that give a new process the search path of this one, without the working folder."""
    left_out = [os.path.abspath(entry) for entry in sys.path if not _is_safe(entry)]
    return {
        "PYTHONPATH": os.pathsep.join(search_path()),
        "PYTHONSAFEPATH": "1",
        USER_PATH: os.pathsep.join([os.environ.get(USER_PATH, ""), *left_out]),
    }


def search_user_folders() -> None:
    """Appends the folders that the user named, and that were left out so far, to this process's search path.

    Call it only where code of the user may run.
    """
    for entry in os.environ.get(USER_PATH, "").split(os.pathsep):
        folder = os.path.abspath(entry)
        if entry and folder not in sys.path:
            sys.path.append(folder)


def _is_safe(entry: str) -> bool:
    # realpath() of this link works in a deleted folder too
    return os.path.isabs(entry) and os.path.realpath(entry) != os.path.realpath("/proc/self/cwd")
