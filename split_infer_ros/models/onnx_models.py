"""Makes a ``ModelEntry`` of an ONNX file. What the file does not say is found by running it once on an image.

No code in the file is run: an ONNX file holds operators and weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.decoders.declaration import write_declaration
from split_infer_ros.models.decoders.facts import OutputFacts
from split_infer_ros.models.decoders.grids import read_anchors
from split_infer_ros.models.decoders.layout import BoxEncoding, OutputLayout
from split_infer_ros.models.decoders.queries import RF_DETR
from split_infer_ros.models.decoders.recognition import OutputReading, recognise
from split_infer_ros.models.decoders.shape_checks import count_boxes
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.onnx_json import entry_of
from split_infer_ros.models.onnx_labels import MAX_LABELS, NAMES, labels_of_metadata, read_labels
from split_infer_ros.models.onnx_options import AUTO, OnnxOptions
from split_infer_ros.models.onnx_recipe import fit_recipe
from split_infer_ros.models.plain_yaml import SUFFIXES
from split_infer_ros.models.recipe import Recipe
from split_infer_ros.models.side_file import SideFile, anchors_in, read_side_file
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.image_input import OnnxImageInput, read_image_input
from split_infer_ros.runtime.user_files import user_path

SUFFIX = ".onnx"
MAX_UNNAMED = 1000  # classes of a model that neither names nor counts them
NEUTRAL = "stretch"  # the recipe that is used until the outputs are recognised


def is_onnx_file(name: str) -> bool:
    """Returns whether a model's name ends in ``.onnx``, in upper or lower case. The file need not exist."""
    return name.lower().endswith(SUFFIX)


def read_onnx_file(name: str, options: OnnxOptions) -> OnnxFile:
    """Reads the model ``FILE.onnx``, and its side file ``FILE.yaml`` if there is one.

    Args:
        name: the path of the model; ``~`` is the user's home.
        options: what the user says about the model. The options override the side file.

    Raises:
        ConfigurationError: one of the files cannot be read, or no input of the model takes images.
    """
    from split_infer_ros.onnx.file import read_onnx  # here, because onnx is optional

    path = user_path(name)
    return OnnxFile(name, read_onnx(path), options, read_side_file(path), path.parent)


def description_files(name: str, options: OnnxOptions) -> list[Path]:
    """Returns the paths of all files that say how the model ``FILE.onnx`` is read, apart from that file.

    These are the possible side files, and the files of labels and of anchors that the user or the side file names.
    Files that do not exist are listed too, because they may appear later. If the side file cannot be read, only the
    user's options name further files.

    Args:
        name: the path of the model.
        options: what the user says about the model.
    """
    path = user_path(name)
    found = [path.with_suffix(suffix) for suffix in SUFFIXES]
    try:
        side = read_side_file(path)
    except ConfigurationError:
        side = SideFile()
    labels = _labels_path(options, side, path.parent)
    anchors = anchors_in(side.decoder if options.decoder == AUTO else options.decoder)
    found += [] if labels is None else [labels]
    return found + ([path.parent / user_path(anchors)] if anchors else [])


def _labels_path(options: OnnxOptions, side: SideFile, folder: Path) -> Path | None:
    """Returns the path of the file of class names that the user or else the side file names; None if neither does."""
    if options.labels:
        return user_path(options.labels)
    return folder / user_path(side.labels) if isinstance(side.labels, str) and side.labels else None


class OnnxFile:
    """A model in an ONNX file, while it is not known yet how its outputs are read.

    ``recognise`` finds out how the outputs are read. ``entry`` then makes the model's entry.

    Args:
        name: the name by which the user chose the model.
        graph: the whole model.
        options: what the user says about the file.
        side: the contents of the side file; None without one.
        folder: the folder in which the files lie that ``side`` names.

    Attributes:
        input: how the model takes images, with a graph that takes nothing but images.

    Raises:
        ConfigurationError: no input takes images, or the labels cannot be read.
    """

    def __init__(
        self, name: str, graph: OnnxGraph, options: OnnxOptions, side: SideFile | None = None, folder: Path = Path()
    ) -> None:
        self._name, self._side, self._folder = name, side or SideFile(), folder
        self._options = OnnxOptions(
            decoder=options.decoder,
            labels=options.labels,
            input_size=options.input_size or self._side.input_size,
            preprocessing=self._side.preprocessing or AUTO if options.preprocessing == AUTO else options.preprocessing,
        )
        self.input: OnnxImageInput = read_image_input(graph, self._options.input_size)
        self._inputs = tuple(tensor.name for tensor in graph.inputs)
        self._names = self._read_names()

    @property
    def graph(self) -> OnnxGraph:
        """The model's graph. The package has changed it if necessary, so that it takes nothing but images."""
        return self.input.graph

    @property
    def first_recipe(self) -> Recipe:
        """The pre-processing until the outputs are recognised: the user's choice, or else ``stretch``."""
        chosen = self._options.preprocessing
        return self._recipe(NEUTRAL if chosen == AUTO else chosen)

    def recognise(self, trial: Mapping[str, npt.NDArray[Any]] | None = None) -> OutputReading:
        """Finds out how the outputs are read, and which pre-processing suits the model.

        Args:
            trial: the model's outputs for one image that looks like a photograph, by name. None if the model was not
                run: metadata, names and shapes then decide alone.

        Raises:
            ConfigurationError: the outputs are not recognised, or cannot be read as the user says.
        """
        classes, size = len(self._names) or None, (self.input.height, self.input.width)
        facts = OutputFacts(self.graph, *size, classes, trial or {}, self._inputs)
        wanted: str | dict[str, Any] = self._options.decoder
        where = "decoder"
        if wanted == AUTO and self._side.path is not None:
            wanted, where = self._side.decoder, f"decoder of {self._side.path}"
        found = recognise(facts, wanted, where)
        recipe = found.recipe if self._options.preprocessing == AUTO else self._options.preprocessing
        self._check_anchors(self._with_anchors(found.layout), facts)
        return OutputReading(found.layout, str(self._recipe(recipe)))

    def describe(self, reading: OutputReading) -> dict[str, Any]:
        """Returns a description of the model's entry that can be written as JSON. ``entry_of`` makes the entry from it.

        Args:
            reading: how the outputs are read, as ``recognise`` returns it.

        Raises:
            ConfigurationError: the labels do not fit the outputs.
        """
        labels = self._labels(reading.layout)
        names = [tensor.name for tensor in self.graph.outputs]
        ignored = [name for name in names if reading.layout.outputs and name not in reading.layout.outputs]
        notes = [*self.input.filled]
        if ignored:
            notes.append(f"The outputs {', '.join(ignored)} of {self.graph.name} are ignored.")
        return {
            "name": self._name,
            "summary": f"{self.graph.name}, {len(labels):,} classes, decoded as {reading.layout.name}",
            "recipe": reading.recipe,
            "size": (self.input.height, self.input.width),
            "labels": labels,
            "outputs": names,
            "layout": write_declaration(self._with_anchors(reading.layout)),
            "notes": notes,
        }

    def entry(self, reading: OutputReading) -> ModelEntry:
        """Returns the model's entry, with a decoder for the outputs.

        Args:
            reading: how the outputs are read, as ``recognise`` returns it.

        Raises:
            ConfigurationError: the labels do not fit the outputs.
        """
        return entry_of(self.describe(reading), self.graph)

    def _recipe(self, text: str) -> Recipe:
        return fit_recipe(Recipe.parse(text), self.input, is_chosen=self._options.preprocessing != AUTO)

    def _with_anchors(self, layout: OutputLayout) -> OutputLayout:
        """Returns the layout with the whole path of its file of anchors, which it names from the model's folder."""
        if not layout.grid.anchors:
            return layout
        path = self._folder / user_path(layout.grid.anchors)
        return replace(layout, grid=replace(layout.grid, anchors=str(path)))

    @staticmethod
    def _check_anchors(layout: OutputLayout, facts: OutputFacts) -> None:
        """Checks that the file of anchors has one anchor for each box."""
        count = count_boxes(layout, facts)
        if layout.encoding is not BoxEncoding.ANCHORS or count is None:
            return
        anchors = len(read_anchors(Path(layout.grid.anchors)))
        if anchors != count:
            raise ConfigurationError(
                f"anchors {layout.grid.anchors} has {anchors:,} anchors, and {layout.boxes} has {count:,} boxes "
                f"({facts}); there is one anchor for each box."
            )

    def _read_names(self) -> tuple[str, ...]:
        """Returns the names of the classes: the user's, those of the side file, or those of the metadata."""
        path = _labels_path(self._options, self._side, self._folder)
        if path is not None:
            return read_labels(path)
        if isinstance(self._side.labels, tuple):
            return self._side.labels
        if NAMES in self.graph.metadata:
            return labels_of_metadata(self.graph.name, self.graph.metadata[NAMES])
        return ()

    def _labels(self, layout: OutputLayout) -> tuple[str, ...]:
        """Returns a name for each class. Classes without names are numbers."""
        labels, outputs = self._names, "; ".join(map(str, self.graph.outputs))
        classes = layout.classes or len(labels) or MAX_UNNAMED
        if classes > MAX_LABELS:
            raise ConfigurationError(
                f"The outputs of {self.graph.name} have {classes:,} classes ({outputs}); at most {MAX_LABELS:,} are "
                "possible."
            )
        is_short = len(labels) < classes and RF_DETR not in layout.outputs  # RF-DETR's last logits may mean nothing
        if labels and (len(labels) > classes or is_short):
            raise ConfigurationError(
                f"There are {len(labels)} labels for {self.graph.name}, whose outputs have {classes} classes "
                f"({outputs}); labels takes a file with one name for each class."
            )
        return labels + tuple(str(number) for number in range(len(labels), classes))
