"""Quantises the model of a trial process with images of a live camera."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from split_infer_ros.autotuning.handed_arrays import keep_in_memory, taken
from split_infer_ros.buffers.host_arrays import Floats
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.quantised_network import QuantisedNetwork

IMAGES, SCOPE, GRAPH, SCOPES = "images", "scope", "graph", "scopes"  # in the trial's request and answer


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Resized images as a model's inputs, float32 (1, 3, h, w) each. They may be read several times."""

    preprocess: Preprocess
    images: NDArray[np.uint8]

    def __iter__(self) -> Iterator[Floats]:
        for image in self.images:
            yield self.preprocess.normalise(image[None], channels_last=False)


class LiveQuantisation:
    """Makes models in int8, and keeps the latest one for further trials.

    Args:
        model: the model in float32, on the CPU.

    Attributes:
        network: the network in int8 that was made last; None before.
    """

    def __init__(self, model: SplitModel) -> None:
        self.network: QuantisedNetwork | None = None
        self._model = model
        self._descriptor = -1

    def run(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Quantises the model.

        Args:
            about: ``images``, as ``handed`` describes them, resized for the model, (n, h, w, 3); and ``scope``, the
                index of a useful scope.

        Returns:
            ``graph``: the ONNX graph in int8, in memory that ``taken`` reads until the next call; ``scope``: which
            layers are in int8, in words; ``scopes``: the number of useful scopes. ``costs`` is empty.

        Raises:
            ConfigurationError: a package is missing, or the model cannot be quantised.
        """
        from split_infer_ros.quantisation.float_graph import float_graph  # only here: they import onnx
        from split_infer_ros.quantisation.quantise import quantise_graph
        from split_infer_ros.quantisation.scope import useful_scopes

        model, images = self._model, taken(about[IMAGES])
        whole = float_graph(model)
        scopes = useful_scopes(whole.graph)
        scope = scopes[about[SCOPE]]
        inputs = _Inputs(model.entry.preprocess, images)
        proto = quantise_graph(model, whole, scope, inputs, count=len(images))
        self.network = QuantisedNetwork(model.network, OnnxGraph(f"{model.entry.name} in int8", proto))
        return {"costs": [], GRAPH: self._keep(proto.SerializeToString()), SCOPE: scope.value, SCOPES: len(scopes)}

    def _keep(self, data: bytes) -> dict[str, Any]:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, description = keep_in_memory(np.frombuffer(data, np.uint8))
        return description
