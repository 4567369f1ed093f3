"""Runs an ONNX model on an image like a photograph, so that its outputs are recognised by their values."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import numpy.typing as npt

from split_infer_ros.buffers.host_arrays import Values, to_host
from split_infer_ros.images.encodings import RGB, Pixels
from split_infer_ros.models.decoders.recognition import OutputReading
from split_infer_ros.models.entry import ModelEntry, outputs_of
from split_infer_ros.models.onnx_models import OnnxFile
from split_infer_ros.models.recipe import Recipe
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.onnx_network import OnnxNetwork
from split_infer_ros.split.split_points import INPUT

SEED = 0
NUM_THINGS = 24  # drawn shapes
_OCTAVES = (2, 4, 8, 16, 32, 64)

Image = npt.NDArray[np.uint8]


def read_outputs(file: OnnxFile) -> OutputReading:
    """Finds out how a model's outputs are read, from their values for an image like a photograph.

    The outputs also show which pre-processing such models usually have. If the first trial used another pre-processing,
    the model is tried once more, because other grey values may give other boxes.

    Raises:
        ConfigurationError: the model does not run, or its outputs are not recognised.
    """
    run = _runner(file)
    recipe = file.first_recipe
    reading = file.recognise(run(recipe))
    if reading.recipe != str(recipe):
        reading = file.recognise(run(Recipe.parse(reading.recipe)))
    return reading


def _runner(file: OnnxFile) -> Callable[[Recipe], dict[str, npt.NDArray[np.generic]]]:
    """Returns the function that computes the outputs for the image, pre-processed by a recipe."""
    height, width = file.input.height, file.input.width
    image = Pixels(photograph_like(height, width), RGB)
    ranks = {tensor.name: len(tensor.shape) for tensor in file.graph.outputs}
    provisional = ModelEntry(
        name=file.graph.name,
        summary="",
        build=lambda: file.graph,
        weights=None,
        preprocess=file.first_recipe.preprocess(height, width),
        labels=(),
        default_split_point=None,
        decode=lambda outputs, limits: [],
    )
    network = SplitModel(OnnxNetwork(provisional, file.graph)).head(INPUT)
    known: list[tuple[Values, tuple[Values, ...]]] = []  # inputs and their results: recipes often give the same input

    def results_for(images: Values) -> tuple[Values, ...]:
        for earlier, results in known:
            if np.array_equal(earlier, images):
                return results
        known.append((images, outputs_of(network(images))))
        return known[-1][1]

    def run(recipe: Recipe) -> dict[str, npt.NDArray[np.generic]]:
        preprocess = recipe.preprocess(height, width)
        gathered = preprocess.gather([image], preprocess.staging(1))
        results = results_for(preprocess.normalise(gathered, channels_last=False))
        arrays = {name: to_host(result) for name, result in zip(ranks, results, strict=True)}
        # Outputs without a batch in front were given one, for the outputs of further images. It is removed here.
        return {name: array[0] if array.ndim == ranks[name] + 1 else array for name, array in arrays.items()}

    return run


def photograph_like(height: int, width: int) -> Image:
    """Returns an image, uint8 (height, width, 3), with the statistics of photographs.

    As in photographs, coarse structures have more contrast than fine ones. Shapes with edges lie on top.
    """
    random = np.random.default_rng(SEED)
    canvas = np.full((height, width, 3), 110, np.float32)
    for octave in _OCTAVES:
        cells = random.normal(0, 60 / np.sqrt(octave), (octave + 1, octave + 1, 3)).astype(np.float32)
        canvas += cv2.resize(cells, (width, height), interpolation=cv2.INTER_CUBIC).reshape(height, width, 3)
    image = np.ascontiguousarray(canvas.clip(0, 255).astype(np.uint8))
    for _ in range(NUM_THINGS):
        centre = (int(random.integers(width)), int(random.integers(height)))
        axes = tuple(int(max(1, side * random.uniform(0.02, 0.25))) for side in (width, height))
        colour = tuple(int(level) for level in random.integers(0, 256, 3))
        if random.random() < 0.5:
            cv2.ellipse(image, centre, axes, float(random.uniform(0, 180)), 0, 360, colour, -1, cv2.LINE_AA)
        else:
            corner = (centre[0] + axes[0], centre[1] + axes[1])
            cv2.rectangle(image, centre, corner, colour, -1)
    blurred: Image = cv2.GaussianBlur(image, (3, 3), 0).reshape(height, width, 3)  # type: ignore[assignment]
    return blurred
