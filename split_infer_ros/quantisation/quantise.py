"""Quantises a model to int8. Candidates have more or fewer layers in int8. The first that loses little is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from split_infer_ros.buffers.host_arrays import Floats
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.executable import make_executable
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.models.agreement import MAP, TOP_1
from split_infer_ros.models.detections import Detections
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.quantisation.arrange import arrange
from split_infer_ros.quantisation.calibrate import calibrate
from split_infer_ros.quantisation.float_graph import float_graph
from split_infer_ros.quantisation.quality import Quality, compare, detect
from split_infer_ros.quantisation.samples import Samples
from split_infer_ros.quantisation.scope import Scope, ignored_nodes, useful_scopes
from split_infer_ros.quantisation.unsigned import make_unsigned
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partition_cache import Partition
from split_infer_ros.split.quantised_network import QuantisedNetwork
from split_infer_ros.split.result_agreement import is_classifier
from split_infer_ros.split.split_points import INPUT, OUTPUT

if TYPE_CHECKING:
    import onnx

Progress = Callable[[str, int], AbstractContextManager[Callable[[], object]]]
"""A function that takes the name and the length of a progress bar, and returns a context that shows the bar.

The context gives a function that advances the bar by one.
"""


@dataclass(frozen=True, slots=True)
class Quantised:
    """A model in int8 and its quality.

    Attributes:
        proto: the graph in int8.
        scope: which layers were quantised.
        quality: the model's quality on images that were not used for calibration.
    """

    proto: onnx.ModelProto
    scope: Scope
    quality: Quality


def quantise(
    model: SplitModel,
    calibration: Samples,
    test: Samples,
    *,
    annotations: Path | None,
    score_threshold: float,
    progress: Progress,
) -> Iterator[Quantised]:
    """Yields candidates in int8: first the model with all layers quantised, then with fewer and fewer; see ``Scope``.

    If a candidate loses too much, ONNX Runtime also computes the same graph, to show what causes the loss.

    Args:
        model: the model in float32, on the CPU.
        calibration: the images that show how large values are.
        test: the images on which the results of float32 and int8 are compared.
        annotations: the folder with annotations of the test images; None if there are none.
        score_threshold: detections of float32 with at least this score are the objects that int8 should find.
        progress: shows how many test images are done.

    Raises:
        ConfigurationError: the model cannot be quantised, or its results cannot be compared.
        SourceError: an image or an annotation cannot be read.
    """
    measure = TOP_1 if is_classifier(model) else MAP
    truth = None if annotations is None else [test.annotation(index, annotations) for index in range(len(test))]
    whole = float_graph(model)

    def found_by(computing: SplitModel, bar: str, network: Partition | None = None) -> list[Detections]:
        with progress(bar, len(test)) as advance:
            return detect(computing, test, measure, advance, network)

    reference = found_by(model, "float32")
    judge = partial(compare, reference, truth=truth, measure=measure, score_threshold=score_threshold)
    for scope in useful_scopes(whole.graph):
        proto = quantise_graph(model, whole, scope, calibration, count=len(calibration))
        quantised = QuantisedNetwork(model.network, OnnxGraph(f"{model.entry.name} in int8", proto))
        candidate = SplitModel(quantised)
        quality = judge(found_by(candidate, "int8"))
        if quality.loss:
            network = make_executable(quantised.prepared.whole(), ExecutionConfig(engine=Engine.ONNXRUNTIME))
            same = judge(found_by(candidate, "int8 in ONNX Runtime", network))
            quality = replace(quality, elsewhere=same.agreement)
        yield Quantised(proto, scope, quality)


def quantise_graph(
    model: SplitModel, whole: onnx.ModelProto, scope: Scope, images: Iterable[Floats], *, count: int
) -> onnx.ModelProto:
    """Returns a model's graph in int8, which can be cut at the model's split points.

    Args:
        model: the model in float32.
        whole: the model's graph in float32; see ``float_graph``. It is not changed.
        scope: which layers are quantised.
        images: inputs, float32 (1, C, H, W), that show how large values are.
        count: number of images.

    Raises:
        ConfigurationError: NNCF cannot quantise the graph.
    """
    ignored = ignored_nodes(whole.graph, scope)
    proto: onnx.ModelProto = calibrate(whole, images, count=count, ignored=ignored)
    inner = [point for point in model.split_points if point.name not in (INPUT, OUTPUT)]
    make_unsigned(proto)
    arrange(proto, [[spec.name for spec in point.tensors] for point in inner])
    return proto


def best_of(candidates: Iterator[Quantised]) -> Quantised:
    """Returns the first candidate that loses little enough. Candidates behind it are not made.

    If all lose too much, it returns the candidate that agrees best with float32.
    """
    seen: list[Quantised] = []
    for candidate in candidates:
        if not candidate.quality.loss:
            return candidate
        seen.append(candidate)
    return max(seen, key=lambda each: each.quality.agreement)
