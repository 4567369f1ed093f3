"""Options of commands that load an ONNX file: what the file does not say itself."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from split_infer_ros.models.onnx_options import AUTO, Decoder, OnnxOptions, Recipe


def add_onnx_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options, which have the names and values of the nodes' parameters."""
    for_files = "for FILE.onnx, like the parameter of this name; default: %(default)s"
    parser.add_argument("--decoder", choices=[AUTO, *(each.value for each in Decoder)], default=AUTO, help=for_files)
    parser.add_argument("--labels", default="", metavar="FILE", help="for FILE.onnx, like the parameter of this name")
    parser.add_argument(
        "--input-size", default="", metavar="HEIGHTxWIDTH", help="for FILE.onnx, like the parameter of this name"
    )
    parser.add_argument(
        "--preprocessing", choices=[AUTO, *(each.value for each in Recipe)], default=AUTO, help=for_files
    )


def onnx_options_of(chosen: argparse.Namespace) -> dict[str, Any]:
    """Returns the values of these options, as ``ModelSpec`` takes them."""
    return {field.name: getattr(chosen, field.name) for field in fields(OnnxOptions)}
