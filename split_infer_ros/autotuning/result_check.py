"""Checks that a tuned configuration of a model gives the same results as the model as built, on the same images."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from split_infer_ros.buffers.host_arrays import Floats, Values, as_tensor
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.precision import Precision
from split_infer_ros.engines.result_difference import MAX_DIFFERENCE
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.entry import outputs_of
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.runtime.num_threads import engine_threads
from split_infer_ros.split.load import Built
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.result_agreement import ResultDifference, compare_results, is_classifier
from split_infer_ros.split.sample_images import NUM_SAMPLES, sample_images
from split_infer_ros.split.split_points import OUTPUT, as_specified

MAX_COMPARED_S = 1.0  # after the model as built has run so long, no further images are compared
MAX_TF32_DIFFERENCE = 2e-3  # allowed on a GPU that rounds factors of float32 to 10 bits, torch's default


class ResultCheck:
    """Compares the results of configurations with those of the model as built.

    Args:
        as_built: the model as built, without any change for speed: a torch module or an ONNX graph.
        source: the model on the CPU, with its native engine: the one that runs it as built.
    """

    def __init__(self, as_built: Built, source: SplitModel) -> None:
        self._as_built, self._source = as_built, source
        self._classifies = is_classifier(source)
        self._samples: dict[int, list[Floats]] = {}  # by batch size
        self._expected: dict[tuple[int, int], list[tuple[Values, ...]]] = {}  # by batch size and threads

    def batches(self, batch_size: int) -> list[Floats]:
        """Returns drawn scenes in batches, float32 (batch_size, 3, h, w) each. They are the same at each call."""
        if batch_size not in self._samples:
            count = math.ceil(NUM_SAMPLES / batch_size) * batch_size
            samples = sample_images(self._source.entry, count)
            self._samples[batch_size] = [samples[first : first + batch_size] for first in range(0, count, batch_size)]
        return self._samples[batch_size]

    def difference(
        self, model: SplitModel, batch_size: int, compute: Callable[[Floats], Sequence[Values]]
    ) -> ResultDifference:
        """Returns how far the results of a configuration are from those of the model as built.

        In fp32, the results must agree; see ``ResultDifference.agrees``. In other precisions, any finite difference is
        accepted.

        Args:
            model: the model with the configuration.
            batch_size: the size of the batches.
            compute: runs the model's backbone up to ``output`` on a batch, and returns values on the host.

        Raises:
            ConfigurationError: the results differ by more than is accepted.
        """
        expected, head = self._outputs_as_built(batch_size), model.head(OUTPUT)
        specs = model.split_point(OUTPUT).head_inputs
        found = []
        for images in self.batches(batch_size)[: len(expected)]:
            found.append(outputs_of(head(*as_specified(compute(images), specs))))
        result = compare_results(self._source.entry, found, expected, classifies=self._classifies)
        is_judged = model.precision is Precision.FP32

        def allowed() -> float:
            return self._allowed(model.execution_config.engine, batch_size) if is_judged else math.inf

        is_rounded = not is_judged or (_uses_tf32(model) and result.largest <= MAX_TF32_DIFFERENCE)
        if not (result.agrees(allowed) or (is_rounded and math.isfinite(result.largest))):
            raise ConfigurationError(
                f"Results differ from the model's as built {result}; {result.allowed_text(allowed)}."
            )
        return result

    def _outputs_as_built(self, batch_size: int) -> list[tuple[Values, ...]]:
        """Returns the outputs of the model as built: contiguous, eager, with the calling thread's number of threads.

        An ONNX model runs with its native engine. If the model is slow, only the first batches run.
        """
        as_built, num_threads = self._run_as_built()
        key = batch_size, num_threads
        if key not in self._expected:
            results, end = [], time.monotonic() + MAX_COMPARED_S
            for images in self.batches(batch_size):
                results.append(outputs_of(as_built(images)))
                if time.monotonic() > end:
                    break
            self._expected[key] = results
        return self._expected[key]

    def _run_as_built(self) -> tuple[Callable[[Floats], Any], int]:
        """Returns a function that runs the model as built, and how many threads it uses when this thread calls it."""
        module = self._as_built
        if isinstance(module, OnnxGraph):
            return self._source.backbone(OUTPUT), engine_threads()
        import torch  # only here: an ONNX model needs no torch

        return lambda images: module(as_tensor(images)), torch.get_num_threads()

    def _allowed(self, engine: Engine, batch_size: int) -> float:
        """Returns how far outputs may differ from those of the model as built, if too few objects are detected."""
        if engine is Engine.TORCH or isinstance(self._as_built, OnnxGraph):
            return MAX_DIFFERENCE
        from split_infer_ros.engines.allowed_difference import allowed_difference  # only here: it imports torch

        images, results = self.batches(batch_size)[0], self._outputs_as_built(batch_size)[0]
        return allowed_difference(self._as_built, (as_tensor(images),), tuple(map(as_tensor, results)))


def _uses_tf32(model: SplitModel) -> bool:
    if model.device.type != "cuda":
        return False
    import torch

    return torch.backends.cudnn.allow_tf32
