"""What a user says about an ONNX file that the file does not say itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.decoders.declaration import is_declaration, parse_text
from split_infer_ros.models.decoders.registry import FAMILIES
from split_infer_ros.models.recipe import Recipe
from split_infer_ros.models.recipe_words import GRAMMAR
from split_infer_ros.onnx.image_size import parse_size
from split_infer_ros.setting import given_settings, setting

AUTO = "auto"
DECODERS = (AUTO, *FAMILIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxOptions:
    """A user's options for an ONNX file. They override what the file says, or what follows from its outputs.

    Raises:
        ConfigurationError: a value is unknown, or does not have the form that the option takes.
    """

    PURPOSE: ClassVar[str] = "The model"

    decoder: str = setting(
        AUTO,
        "How the outputs of FILE.onnx are read. auto: recognised by names, shapes and a trial. Else one of "
        f"{', '.join(DECODERS[1:])}; or a declaration such as boxes=OUTPUT[0:4],scores=OUTPUT[4:],encoding=corners.",
    )
    labels: str = setting(
        "",
        "The file of the class names of FILE.onnx: text with one name per line, JSON or YAML. Empty: the names in "
        "the model's metadata, or else numbers.",
    )
    input_size: str = setting(
        "",
        "The input size of FILE.onnx as HEIGHTxWIDTH, if the file does not fix it. Empty: the size in the model's "
        "metadata.",
    )
    preprocessing: str = setting(
        AUTO, f"How images become the input of FILE.onnx. auto: as its exporter does it. Else {GRAMMAR}."
    )

    def __post_init__(self) -> None:
        if is_declaration(self.decoder):
            parse_text(self.decoder)
        elif self.decoder not in DECODERS:
            raise ConfigurationError(
                f"decoder '{self.decoder}' is unknown; it takes one of: {', '.join(DECODERS)}; or a declaration such "
                "as boxes=OUTPUT[0:4],scores=OUTPUT[4:],encoding=corners."
            )
        if self.preprocessing != AUTO:
            Recipe.parse(self.preprocessing)
        if self.input_size:
            parse_size(self.input_size)

    @property
    def given(self) -> list[str]:
        """The names of the options that are not at their defaults."""
        return given_settings(OnnxOptions, self)
