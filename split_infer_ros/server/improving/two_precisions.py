"""Computes images in two precisions, beside the frames that are served."""

from __future__ import annotations

import numpy as np

from split_infer_ros.buffers.host_arrays import Floats, Values, copy_into
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.agreement import Agreement
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.operator_placement.placed_backbone import make_backbone
from split_infer_ros.runtime.inference import inference_mode
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.server.head_partitions import HeadPartitions
from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming.settings import WeightsSettings


class TwoPrecisions:
    """Computes images with a reference and with the same network in another precision.

    Both backbones use one thread of a CPU, so the frames that are served keep most of it. The features of both go
    through the reference's head, as in a pipeline whose backbone has changed its precision.

    Args:
        reference: the model in fp32.
        other: the same network in another precision, with the same split points.
        split_point: where the model is split.

    Attributes:
        split_point: the argument.
    """

    def __init__(self, reference: SplitModel, other: SplitModel, split_point: str) -> None:
        self.split_point = split_point
        self._entry = reference.entry
        self._models = _apart(reference), _apart(other)
        self._heads = HeadPartitions.open(
            reference, WeightsSettings(), num_threads=1, batch_size=1, on_note=lambda note: None
        )
        self._stream = Stream(reference.device)

    def add_to(self, agreement: Agreement, image: Pixels) -> float | None:
        """Computes an image, and adds the detections to an agreement.

        If the reference finds no object, the other precision does not compute the image.

        Args:
            agreement: the agreement so far.
            image: the source image.

        Returns:
            The mean of the other precision's best scores, as many as there are objects; None if there are none.
        """
        preprocess = self._entry.preprocess
        gathered = preprocess.gather([image], preprocess.staging(1))
        images = preprocess.normalise(gathered, channels_last=False)
        reference, other = self._models
        expected = self._detections(reference, images, agreement.limits)
        num_objects = len(agreement.objects(expected)[1])
        if not num_objects:
            return None
        found = self._detections(other, images, agreement.limits)
        agreement.add(expected, found)
        return float(found.scores[:num_objects].mean()) if len(found) else 0.0

    def _detections(self, model: SplitModel, images: Floats, limits: Limits) -> Detections:
        """Returns what a model detects in one image (1, 3, h, w), in pixels of its input."""
        model.execution_config.engine.use_threads(1)
        with inference_mode():
            with self._stream.work("agreement"):
                given = model.blank_images(1)
                copy_into(given, images)
                features = make_backbone(model, self.split_point)(given)
                self._stream.fence().wait()
            outputs = self._heads.run(self.split_point, [_on_cpu(each) for each in features])
            return self._entry.detections_of(outputs, limits)[0]


def _apart(model: SplitModel) -> SplitModel:
    """Returns a model whose partitions on a CPU are made for one thread, and freed with it."""
    return model.placed(model.device) if model.device.type == "cpu" else model


def _on_cpu(values: Values) -> Values:
    return values if isinstance(values, np.ndarray) else values.cpu()
