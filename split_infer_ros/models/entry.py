"""The description of a model: how it is built, how it is fed, and how its outputs are decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from split_infer_ros.buffers.host_arrays import Values, as_tensor, to_host
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.models.takes import Takes
from split_infer_ros.onnx.graph import OnnxGraph

if TYPE_CHECKING:
    from torch import Tensor, nn

Decode = Callable[[tuple[Any, ...], Limits], list[Detections]]
"""A decode function. It takes the outputs of a batch and limits, and returns the detections of each image.

The outputs are all tensors or all arrays, as ``ModelEntry.decodes_arrays`` says.
"""


def outputs_of(results: Any) -> tuple[Any, ...]:
    """Returns a network's results as the tuple that ``decode`` takes. A network gives a tensor, a tuple or a list."""
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


@dataclass(frozen=True, slots=True)
class Weights:
    """The source of a model's trained weights: a path, a URL, a function or a file of Darknet's.

    With no attribute set, the model has no published weights.

    Attributes:
        path: a file in this package.
        url: a file that is downloaded once.
        file_name: the name of the download in torch.hub's folder of checkpoints.
        fetch: a function of another library, which returns a state dict.
        darknet_file: the name of Darknet's own file of weights, which the user has to fetch.
    """

    path: Path | None = None
    url: str | None = None
    file_name: str | None = None
    fetch: Callable[[], Mapping[str, Tensor]] | None = None
    darknet_file: str | None = None


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """What the package knows about one model: how it is built, how it is fed, and how its outputs are decoded.

    Attributes:
        name: the name by which users choose the model.
        summary: one line for people.
        build: makes the untrained module, or the ONNX graph with its weights. Both take float32 (N, 3, h, w). A module
            gives a tensor, or a tuple or list of tensors.
        weights: the source of the trained weights; None if ``build`` makes the model with its weights.
        preprocess: how images become the model's input.
        labels: the class names. A label is an index of this tuple.
        default_split_point: the split point if the user chooses none; None for the last one before ``output``, the end
            of the model.
        decode: converts the outputs of a batch, under limits, to detections in pixels of the input. The detections own
            their memory, because the next batch may overwrite the outputs.
        decodes_arrays: whether ``decode`` takes NumPy arrays. Otherwise it takes tensors.
        takes: what its frames hold: images, or point clouds for some tasks.
        check: raises a FrameError for a frame that would fail. It is called when a frame comes, so that the frame costs
            no other frame of its batch.
        notes: what a user should know about how the model is used, as sentences for the log.
    """

    name: str
    summary: str
    build: Callable[[], nn.Module | OnnxGraph]
    weights: Weights | None
    preprocess: Preprocess
    labels: tuple[str, ...]
    default_split_point: str | None
    decode: Decode
    notes: tuple[str, ...] = ()
    decodes_arrays: bool = False
    takes: Takes = Takes.IMAGES
    check: Callable[[Any], None] | None = None

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """The shape of one input image: (3, height, width)."""
        return 3, self.preprocess.height, self.preprocess.width

    def in_source(self, detections: Detections, height: int, width: int) -> Detections:
        """Converts the boxes of detections from pixels of the model's input to pixels of the source image.

        Args:
            detections: the detections, as ``decode`` returns them.
            height, width: the size of the source image in pixels.
        """
        boxes = self.preprocess.to_source(detections.boxes, height, width)
        return Detections(boxes, detections.scores, detections.labels)

    def detections_of(self, outputs: Sequence[Values], limits: Limits) -> list[Detections]:
        """Calls ``decode`` on outputs of either kind, tensors or arrays.

        Outputs of the other kind than ``decode`` takes are converted first. Outputs on the host are not copied, except
        that arrays of 16-bit floats become float32.

        Args:
            outputs: the outputs of a batch, tensors or arrays.
            limits: decide which detections are kept.

        Returns:
            The detections of each image, with boxes in pixels of the model's input.
        """
        take = to_host if self.decodes_arrays else as_tensor
        return self.decode(tuple(map(take, outputs)), limits)
