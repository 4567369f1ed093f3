"""Refuses command lines that ROS accepts silently: arguments that nobody reads, and files without parameters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.text import repair_text

PARAMETER_FILE = "--params-file"


def refuse_arguments(arguments: Sequence[str]) -> None:
    """Refuses arguments that are not ROS's, such as a bare ``NAME:=VALUE``. That is ROS's old form of renaming.

    Args:
        arguments: the process's arguments, without its name. ROS's own stand between ``--ros-args`` and ``--``.

    Raises:
        ConfigurationError: an argument is not ROS's.
    """
    of_ros = False
    for argument in arguments:
        if argument == "--ros-args":
            of_ros = True
        elif of_ros:
            of_ros = argument != "--"
        else:
            raise ConfigurationError(
                f"The argument '{argument}' is unknown. Nodes take ROS's arguments only, behind --ros-args: "
                "--ros-args -p NAME:=VALUE sets a parameter."
            )


def check_encoding(arguments: Sequence[str]) -> None:
    """Checks that all arguments are UTF-8, because ROS can carry only UTF-8.

    Args:
        arguments: the process's arguments.

    Raises:
        ConfigurationError: an argument is not UTF-8.
    """
    for argument in arguments:
        if repair_text(argument) != argument:
            raise ConfigurationError(
                f"The argument {repair_text(argument)!r} is not UTF-8, which is all that ROS takes; rename the file, "
                "or set a link to it."
            )


def check_parameter_files(arguments: Sequence[str]) -> None:
    """Checks that each parameter file among the arguments is empty, or maps names of nodes to their parameters.

    ROS itself checks the rest. A file that cannot be read is left to ROS, which then says what is wrong.

    Args:
        arguments: the process's arguments.

    Raises:
        ConfigurationError: a file holds something else, such as a list or a single word.
    """
    for flag, path in itertools.pairwise(arguments):
        if flag != PARAMETER_FILE:
            continue
        try:
            content = yaml.safe_load(Path(path).read_bytes())
        except (OSError, yaml.YAMLError):
            continue  # ROS says what is wrong with the file
        if content is not None and not isinstance(content, Mapping):
            raise ConfigurationError(
                f"{path} is no parameter file: it holds {str(content)[:40]!r}, and not the names of nodes, each with "
                "its ros__parameters."
            )
