"""The model of a command: its argument, and the options that every command with a model has."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from split_infer_ros.models.named_weights import NamedWeights
from split_infer_ros.models.onnx_options import AUTO, DECODERS, OnnxOptions
from split_infer_ros.models.shapes_file import NAME as SHAPES
from split_infer_ros.split.model_spec import ModelSpec


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds the argument that names the model."""
    parser.add_argument("model", help="name in the catalogue, timm:NAME, FILE.onnx, package.module:factory or FILE.pt2")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options, which have the names and values of the nodes' parameters."""
    parser.add_argument("--allow-user-code", action="store_true", help="load your own model, which may run any code")
    for_files = "for FILE.onnx, like the parameter of this name; default: %(default)s"
    parser.add_argument(
        "--decoder", metavar="NAME", default=AUTO, help=f"{', '.join(DECODERS)}, or a declaration; {for_files}"
    )
    parser.add_argument("--labels", default="", metavar="FILE", help="for FILE.onnx, like the parameter of this name")
    parser.add_argument(
        "--input-size", default="", metavar="HEIGHTxWIDTH", help="for FILE.onnx, like the parameter of this name"
    )
    parser.add_argument("--preprocessing", default=AUTO, metavar="WORDS", help=for_files)


def weights_of(chosen: argparse.Namespace, untrained: NamedWeights) -> str:
    """Returns the weights that the user chose. By default, they are untrained ones, which need no download.

    Those of ``shapes`` are part of the package, and its ONNX file has no others.

    Args:
        chosen: the parsed arguments.
        untrained: the weights by default.
    """
    return str(chosen.weights or (NamedWeights.DEFAULT if chosen.model == SHAPES else untrained).value)


def model_spec_of(chosen: argparse.Namespace, *, weights: str, device: str = "cpu", **more: Any) -> ModelSpec:
    """Returns which model the user chose.

    Args:
        chosen: the parsed arguments, those of ``add_model`` and ``add_model_options`` among them.
        weights: as ``ModelSpec`` takes them.
        device: as ``ModelSpec`` takes it.
        more: what else ``ModelSpec`` takes.
    """
    onnx_options = {field.name: getattr(chosen, field.name) for field in fields(OnnxOptions)}
    return ModelSpec(
        chosen.model, weights=weights, device=device, allow_user_code=chosen.allow_user_code, **onnx_options, **more
    )
