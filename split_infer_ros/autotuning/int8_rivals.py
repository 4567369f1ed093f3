"""Makes a served model faster in int8, with images of its own cameras."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from split_infer_ros.autotuning.background_trials import BackgroundTrials, PendingRivals, is_clearly_slower
from split_infer_ros.autotuning.engine_choice import describe_comparison
from split_infer_ros.autotuning.handed_arrays import handed, taken
from split_infer_ros.autotuning.live_quantisation import GRAPH, IMAGES, SCOPE, SCOPES
from split_infer_ros.autotuning.spaces import QUANTISE, untuned_config
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.server.improving.rivals import Rival, TakeImage
from split_infer_ros.server.improving.turns import Verdict
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.network import Network
from split_infer_ros.split.quantised_file import keep_quantised, quantised_path
from split_infer_ros.split.quantised_network import CONFIG, QuantisedNetwork

if TYPE_CHECKING:
    import onnx

NUM_IMAGES = 48  # for the calibration; NNCF's scales hardly change with more
MAX_IMAGE_BYTES = 64 * 10**6  # of the resized images, which are kept in memory until the model is quantised


class Int8Rivals(PendingRivals):
    """Proposes a model in int8. It is a ``Rivals``.

    A model that was quantised before is proposed as it is. Otherwise, the trial process quantises the model with images
    that the cameras send meanwhile: first all layers, then fewer and fewer; see ``Scope``. The images are in memory
    alone. A model that wins is kept for ``precision: int8``, like that of the command ``quantise``.

    Args:
        trials: runs the trials.
        min_agreement: how much detections must agree with those in fp32, 0..1; 0: as much as int8 should.
    """

    def __init__(self, trials: BackgroundTrials, min_agreement: float = 0.0) -> None:
        super().__init__(trials)
        self._min_agreement = min_agreement or Precision.INT8.min_agreement
        self._scope, self._num_scopes = 0, 1  # of the next proposal, and how many are useful
        self._made: tuple[Network, onnx.ModelProto] | None = None  # its source and its graph, if it was made here

    def next(
        self, model: SplitModel, split_point: str, is_over: Callable[[], bool], take_image: TakeImage
    ) -> Rival | None:
        """Returns the next model in int8; see ``Rivals.next``."""
        if self._hot is not None:
            return None
        while self._pending is None and not is_over() and self._scope < self._num_scopes:
            try:
                self._pending = self._proposed(model, split_point, is_over, take_image)
            except (ConfigurationError, OSError) as error:
                if not is_over():  # otherwise its process was ended, and that says nothing about int8
                    self._give_up(str(error))
        if self._pending is None and not is_over():
            self._note_cost()
        return self._pending

    def settle(self, verdict: Verdict) -> None:
        """Records what turns on live frames have shown about the latest model in int8. Keeps it if it has won."""
        super().settle(verdict)
        if verdict.rival_wins and self._made is not None:
            try:
                keep_quantised(*self._made)
            except ConfigurationError as error:
                self._found.append(str(error).rstrip("."))
        self._scope, self._made = self._num_scopes, None  # with fewer layers in int8, it would be slower

    def refuse(self, reason: str) -> None:
        """Notes that the latest model in int8 cannot serve."""
        super().refuse(reason)
        self._made = None

    def _proposed(
        self, model: SplitModel, split_point: str, is_over: Callable[[], bool], take_image: TakeImage
    ) -> Rival | None:
        """Returns a model in int8 that is not clearly slower in a trial; None if the search is over, or there is none.

        Raises:
            ConfigurationError: the model cannot be quantised, or too much processor time was spent.
            OSError: memory is short, or the trial process has died.
        """
        if not self._trials.may_go_on:
            raise ConfigurationError("the trials took too much processor time")
        config = replace(CONFIG, threads=model.execution_config.threads)
        if not self._scope and quantised_path(model.network).is_file():
            rival, scope, num_scopes = (
                self._rival("int8", load_model(replace(self._trials.spec, execution_config=config))),
                0,
                1,
            )
        else:
            images = _images(model.entry.preprocess, take_image)
            if images is None:
                return None
            with handed(images) as description:
                del images  # the process has a copy
                outcome = self._trials.run(QUANTISE, {IMAGES: description, SCOPE: self._scope})
            if outcome.error is not None:
                raise ConfigurationError(outcome.error)
            scope, num_scopes = self._scope, outcome.facts[SCOPES]
            graph = _parsed(taken(outcome.facts[GRAPH]).tobytes())
            self._made = model.network, graph
            network = QuantisedNetwork(model.network, OnnxGraph(f"{model.entry.name} in int8", graph))
            rival = self._rival(f"int8 of {outcome.facts[SCOPE]}", SplitModel(network, model.device, config))
        untuned = untuned_config(model, Precision.INT8, Engine.OPENVINO.value)
        records = self._trials.compare({rival.name: untuned}, model, split_point, is_over)
        if is_over():
            return None
        if len(records) < 2 or is_clearly_slower(records[1], records[0]):
            self._give_up(f"{describe_comparison(records)} in a trial")
            return None
        self._scope, self._num_scopes = scope + 1, num_scopes
        return rival

    def _rival(self, name: str, model: SplitModel) -> Rival:
        return Rival(name, model, min_agreement=self._min_agreement)

    def _give_up(self, reason: str) -> None:
        self._scope, self._made = self._num_scopes, None
        self._found.append(f"int8 is not used ({reason.rstrip('.')})")


def _images(preprocess: Preprocess, take_image: TakeImage) -> NDArray[np.uint8] | None:
    """Returns images of the cameras, resized for a model, uint8 (n, h, w, 3); None if the search is over."""
    staging = preprocess.staging(1)
    images = np.empty((max(1, min(NUM_IMAGES, MAX_IMAGE_BYTES // staging.size)), *staging.shape[1:]), np.uint8)
    for place in images:
        image = take_image()
        if image is None:
            return None
        np.rint(preprocess.gather([image], staging)[0], out=place, casting="unsafe")
    return images


def _parsed(data: bytes) -> onnx.ModelProto:
    from onnx import ModelProto  # only here: onnx is optional

    return ModelProto.FromString(data)
