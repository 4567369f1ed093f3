"""Keeps this process, and the processes that it starts, from importing Python modules from the working folder.

The working folder may hold anything, such as downloads beside a model. Python searches the working folder if PYTHONPATH
has an empty entry, and with ``python -m`` and ``python -c``. A file ``random.py`` there would run in place of Python's
own module.

Folders that the user named in PYTHONPATH are searched, except the working folder. If the user named the working folder
as well, it is searched only after the user has allowed their own code. It then comes last, so that it hides no other
module.

This module is imported before the search path is clean. So it imports only modules that Python itself has imported.
"""

import os
import site
import sys

USER_PATH = "SPLIT_INFER_ROS_USER_PATH"  # an environment variable with the user's original PYTHONPATH
PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def drop_working_folder(*named: str) -> None:
    """Removes the working folder and relative folders from this process's search path.

    Also changes the environment, so that processes that libraries start do not search these folders either.

    Args:
        named: folders that count as named by the user, besides those of PYTHONPATH. ``search_user_folders`` adds them.
    """
    user_path = os.environ.get("PYTHONPATH", "")
    os.environ[USER_PATH] = os.pathsep.join([os.environ.get(USER_PATH, user_path), *named])
    sys.path[:] = search_path()
    os.environ.update(PYTHONPATH=os.pathsep.join(filter(_is_safe, user_path.split(os.pathsep))), PYTHONSAFEPATH="1")


def search_path() -> list[str]:
    """Returns this process's search path without the working folder and without relative folders.

    The folders of this package and of the Python installation always stay. If the working folder is this package's
    folder, it comes last.
    """
    installed = {os.path.dirname(os.__file__), *site.getsitepackages()}
    path = [entry for entry in sys.path if _is_safe(entry) or entry in installed]
    return path if PACKAGE_FOLDER in path else [*path, PACKAGE_FOLDER]


def child_environment() -> dict[str, str]:
    """Returns environment variables that give a new process this process's search path, without the working folder.

    In the new process, ``search_user_folders`` can add the folders that are left out.
    """
    left_out = [os.path.abspath(entry) for entry in sys.path if not _is_safe(entry)]
    return {
        "PYTHONPATH": os.pathsep.join(search_path()),
        "PYTHONSAFEPATH": "1",
        USER_PATH: os.pathsep.join([os.environ.get(USER_PATH, ""), *left_out]),
    }


def search_user_folders() -> None:
    """Lets this process import Python modules from the user's folders.

    The user's folders are those that the user named, in PYTHONPATH or by ``drop_working_folder(*named)``. Those that
    the search path lacks so far are appended to its end. Call this only if the user's own code may run.
    """
    for entry in os.environ.get(USER_PATH, "").split(os.pathsep):
        folder = os.path.abspath(entry)
        if entry and folder not in sys.path:
            sys.path.append(folder)


def _is_safe(entry: str) -> bool:
    # realpath() of /proc/self/cwd also works in a deleted folder
    return os.path.isabs(entry) and os.path.realpath(entry) != os.path.realpath("/proc/self/cwd")
