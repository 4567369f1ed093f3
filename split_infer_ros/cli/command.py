"""What commands share: how they run, common arguments, the model that the user chose, and checks of numbers."""

from __future__ import annotations

import math
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import SplitInferError
from split_infer_ros.measurements.database import default_path
from split_infer_ros.models.named_weights import NamedWeights
from split_infer_ros.models.onnx_options import AUTO, DECODERS, OnnxOptions
from split_infer_ros.models.shapes_file import NAME as SHAPES
from split_infer_ros.split.model_spec import ModelSpec

Work = Callable[[Namespace], int | None]
"""What a command does with its parsed arguments. It returns the exit code; None stands for 0."""


def command(
    make_parser: Callable[[], CommandParser], errors: tuple[type[Exception], ...] = (SplitInferError,)
) -> Callable[[Work], Callable[[], int]]:
    """Returns a decorator that turns the work of a command into its ``main`` function.

    That function parses the process's arguments, does the work, and returns the exit code. If the work raises one of
    ``errors``, the error's message is printed, and the exit code is 1.

    Args:
        make_parser: makes the parser of the command's arguments.
        errors: the types of errors whose message is meant for the user. Others are raised.
    """

    def decorate(work: Work) -> Callable[[], int]:
        def main() -> int:
            chosen = make_parser().parse_args()
            try:
                return work(chosen) or 0
            except errors as error:
                print(error, file=sys.stderr)
                return 1

        return main

    return decorate


class CommandParser(ArgumentParser):
    """The parser of a command's arguments. It has a method for each argument that several commands have."""

    @classmethod
    def of(cls, name: str, description: str | None) -> CommandParser:
        """Returns a parser without arguments.

        Args:
            name: the command's name.
            description: the text of ``--help``. It keeps its line breaks.
        """
        return cls(prog=name, description=description, formatter_class=RawDescriptionHelpFormatter)

    def add_model(self) -> None:
        """Adds the argument that names the model."""
        forms = "name in the catalogue, timm:NAME, FILE.onnx, package.module:factory or FILE.pt2"
        self.add_argument("model", help=forms)

    def add_model_options(self) -> None:
        """Adds the options of every command with a model. They have the names and values of the nodes' parameters."""
        self.add_argument("--allow-user-code", action="store_true", help="load your own model, which may run any code")
        for_files = "for FILE.onnx, like the parameter of this name"
        default = f"{for_files}; default: %(default)s"
        decoders = f"{', '.join(DECODERS)}, or a declaration"
        self.add_argument("--decoder", metavar="NAME", default=AUTO, help=f"{decoders}; {default}")
        self.add_argument("--labels", default="", metavar="FILE", help=for_files)
        self.add_argument("--input-size", default="", metavar="HEIGHTxWIDTH", help=for_files)
        self.add_argument("--preprocessing", default=AUTO, metavar="WORDS", help=default)

    def add_device(self) -> None:
        """Adds the option that names the backbone's device."""
        self.add_argument("--device", default="auto", help="where the backbone runs: auto, cpu, cuda, cuda:1, ...")

    def add_precision(self) -> None:
        """Adds the option that names the backbone's precision."""
        names = [each.value for each in Precision]
        self.add_argument("--precision", choices=names, default="fp32", help="of the backbone; default: fp32")

    def add_database(self, content: str) -> None:
        """Adds the option that names the file of measurements, which the help text calls ``content``."""
        help_text = f"where {content} are kept; default: {default_path()}"
        self.add_argument("--database", type=Path, metavar="FILE", help=help_text)

    def add_anew(self, content: str) -> None:
        """Adds the option to measure again. The help text calls what is measured ``content``."""
        self.add_argument("--anew", action="store_true", help=f"measure again, even if the database has the {content}")


def weights_of(chosen: Namespace, untrained: NamedWeights) -> str:
    """Returns the weights that the user chose, in the form that ``ModelSpec`` takes.

    If the user chose none, these are untrained weights, which need no download. The model ``shapes`` is an exception:
    it gets its trained weights, which are in this package.

    Args:
        chosen: the parsed arguments, with ``weights`` and ``model``.
        untrained: the name of the untrained weights that the command uses.
    """
    return str(chosen.weights or (NamedWeights.DEFAULT if chosen.model == SHAPES else untrained).value)


def model_spec_of(chosen: Namespace, *, weights: str, device: str = "cpu", **more: Any) -> ModelSpec:
    """Returns the model spec of the model that the user chose.

    Args:
        chosen: the parsed arguments. They include those of ``add_model`` and ``add_model_options``.
        weights: the weights, in the form that ``ModelSpec`` takes.
        device: the device, in the form that ``ModelSpec`` takes.
        more: further arguments of ``ModelSpec``.
    """
    onnx_options = {field.name: getattr(chosen, field.name) for field in fields(OnnxOptions)}
    return ModelSpec(
        chosen.model, weights=weights, device=device, allow_user_code=chosen.allow_user_code, **onnx_options, **more
    )


def whole(text: str) -> int:
    """Reads a whole number of at least 1.

    Raises:
        ArgumentTypeError: the text is something else. argparse turns this into a message for the user.
    """
    with suppress(ValueError):
        if (number := int(text)) >= 1:
            return number
    raise ArgumentTypeError(f"{text} is no whole number of at least 1")


def positive(text: str) -> float:
    """Reads a finite number above 0.

    Raises:
        ArgumentTypeError: the text is something else. argparse turns this into a message for the user.
    """
    with suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return number
    raise ArgumentTypeError(f"{text} is no number above 0")


def say(line: str) -> None:
    """Prints a line of progress on the error output at once."""
    print(line, file=sys.stderr, flush=True)
