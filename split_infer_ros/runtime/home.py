"""Gives a home folder to a process that has none. Services and containers often start such processes."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

from split_infer_ros.runtime.user_files import is_folder

ROS_VARIABLES = ("ROS_LOG_DIR", "ROS_HOME")


def ensure_home() -> None:
    """Sets HOME if it is not set, and a folder for ROS's logs if the home folder is not writable.

    HOME becomes the account's home folder. If that is not writable, HOME becomes a new temporary folder, which only
    this user may read. Without HOME, ROS does not start.
    """
    if not os.environ.get("HOME"):
        account = _home_of_account()
        os.environ["HOME"] = account if account and _is_writable(account) else _temporary_folder()
    if not _is_writable(os.environ["HOME"]) and not any(os.environ.get(name) for name in ROS_VARIABLES):
        os.environ["ROS_LOG_DIR"] = _temporary_folder()


def _home_of_account() -> str | None:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a container may run as a user without an account
        return None


def _is_writable(folder: str) -> bool:
    return is_folder(Path(folder)) and os.access(folder, os.W_OK | os.X_OK)


def _temporary_folder() -> str:
    return tempfile.mkdtemp(prefix=f"split_infer_ros-{os.getuid()}-")
