"""Tensors of every dtype cross at split points as they are, by each engine and through the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from dtype_nets import CLASSES, drawn, half_inside  # noqa: E402
from onnx_nets import IMAGE_SHAPE, exported, images, net  # noqa: E402
from partitions import through_a_slot  # noqa: E402

from split_infer_ros.buffers.host_arrays import FLOAT16  # noqa: E402
from split_infer_ros.engines.engine import Engine  # noqa: E402
from split_infer_ros.engines.execution_config import ExecutionConfig  # noqa: E402
from split_infer_ros.models.classifier import classify  # noqa: E402
from split_infer_ros.models.detections import Limits  # noqa: E402
from split_infer_ros.models.entry import ModelEntry  # noqa: E402
from split_infer_ros.models.preprocess import Preprocess  # noqa: E402
from split_infer_ros.onnx.file import read_onnx  # noqa: E402
from split_infer_ros.onnx.graph import OnnxGraph  # noqa: E402
from split_infer_ros.server.local import LocalPipeline  # noqa: E402
from split_infer_ros.server.settings import DropPolicy, StageSettings  # noqa: E402
from split_infer_ros.split.model import SplitModel  # noqa: E402
from split_infer_ros.split.onnx_network import OnnxNetwork  # noqa: E402

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
ENGINES = [Engine.ONNXRUNTIME, Engine.OPENVINO]
BATCHES = [1, 4]
HALF_ROUNDING = 2e-3
"""The most by which results in float16 may differ, as a share of the largest. On a processor without float16, engines
compute in float32 between the values that cross. Each value that crosses is rounded by at most 2^-11 of itself, two
cross at once at most, and a sum of them behind is off by no more than 2^-10 of the sizes. Doubled for their signs."""


def model_of(graph: OnnxGraph, engine: Engine = Engine.ONNXRUNTIME, classes: int = CLASSES) -> SplitModel:
    pytest.importorskip(engine.value)
    _, height, width = IMAGE_SHAPE
    entry = ModelEntry(
        name=graph.name,
        summary="",
        build=lambda: graph,
        weights=None,
        preprocess=Preprocess(height, width),
        labels=tuple(map(str, range(classes))),
        default_split_point=None,
        decode=classify(height, width),
    )
    return SplitModel(OnnxNetwork(entry, graph)).placed(CPU, ExecutionConfig(engine=engine))


def crossing_dtypes(model: SplitModel) -> set[str]:
    return {spec.dtype.name for point in model.split_points for spec in point.tensors}


def whole(model: SplitModel, batch: Tensor) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = model.head("input")(batch)
    return found


# OpenVINO compiles each partition, which takes most of the time. In each graph, all dtypes cross.
SEEDS = [
    *(pytest.param(seed, Engine.ONNXRUNTIME) for seed in range(6)),
    *(pytest.param(seed, Engine.OPENVINO, marks=[] if seed < 2 else pytest.mark.slow) for seed in range(6)),
]


@pytest.mark.parametrize(("seed", "engine"), SEEDS)
def test_every_dtype_crosses_as_it_is(seed: int, engine: Engine) -> None:
    model = model_of(drawn(seed), engine)
    expected_dtypes = {"float32", "float16", "int8", "uint8", "int32", "int64", "bool"}
    assert crossing_dtypes(model) == expected_dtypes
    batches = [images(count, seed) for count in BATCHES]
    expected = [whole(model, batch) for batch in batches]
    assert all(len(each[0].unique()) > 1 for each in expected)
    for point in model.split_points:  # values are whole numbers that each dtype holds: equal to the bit
        backbone, head = model.backbone(point.name), model.head(point.name)
        for batch, results in zip(batches, expected, strict=True):
            assert all(map(torch.equal, through_a_slot(point, backbone, head, batch), results)), point.name


def test_bytes_are_those_of_the_dtype() -> None:
    for seed in range(6):
        model = model_of(drawn(seed))
        for point in model.split_points:
            features = model.backbone(point.name)(images(2))
            assert point.bytes_per_image == sum(feature[0].nbytes for feature in features)


@pytest.mark.parametrize("engine", ENGINES)
def test_pipeline_gives_the_same_at_every_split_point(engine: Engine) -> None:
    model = model_of(drawn(3), engine)
    shots = [np.random.default_rng(seed).integers(0, 256, (16, 16, 3), np.uint8) for seed in range(5)]
    limits = Limits(score_threshold=0.0)

    def scores(split_point: str, batch_size: int) -> Iterator[tuple[list[int], list[float]]]:
        settings = StageSettings(split_point=split_point, batch_size=batch_size, drop_policy=DropPolicy.BLOCK)
        with LocalPipeline(model, settings, limits=limits) as pipeline:
            for result in pipeline.run(shots):
                yield result.detections.labels.tolist(), result.detections.scores.tolist()

    expected = {batch_size: list(scores("input", batch_size)) for batch_size in BATCHES}
    for results in expected.values():
        assert len({label for labels, _ in results for label in labels[:1]}) >= 1
    for point in model.split_points:
        for batch_size in BATCHES:
            assert list(scores(point.name, batch_size)) == expected[batch_size], point.name


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> OnnxGraph:
    """A network in float16, whose nodes come in the order in which the converter writes them."""
    path = tmp_path_factory.mktemp("half") / "half.onnx"
    path.write_bytes(half_inside(exported(net(), by_dynamo=False, is_symbolic=True).proto).SerializeToString())
    return read_onnx(path)


@pytest.mark.parametrize("engine", ENGINES)
def test_float16_inside_runs_at_every_split_point(half: OnnxGraph, engine: Engine) -> None:
    model = model_of(half, engine, classes=10)
    assert len(model.split_points) > 7
    assert {spec.dtype for point in model.split_points[1:-1] for spec in point.tensors} == {FLOAT16}
    expected = [whole(model, images(count)) for count in BATCHES]
    for point in model.split_points:
        backbone, head = model.backbone(point.name), model.head(point.name)
        for count, results in zip(BATCHES, expected, strict=True):
            found = through_a_slot(point, backbone, head, images(count))
            for one, other in zip(found, results, strict=True):
                assert one.dtype == torch.float32
                assert (one - other).abs().max() <= HALF_ROUNDING * other.abs().max(), point.name


class Calibration:
    """Gives a few images, as ONNX Runtime's quantiser asks for them."""

    def __init__(self) -> None:
        self._feeds = iter([{"images": images(2, seed).numpy()} for seed in range(4)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


@pytest.fixture(scope="module", params=["QInt8", "QUInt8"])
def whole_numbers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OnnxGraph:
    """A network in which all operators compute on whole numbers."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    folder: Path = tmp_path_factory.mktemp("int8")
    source, path = folder / "float.onnx", folder / "int8.onnx"
    source.write_bytes(exported(net(), by_dynamo=False, is_symbolic=True).proto.SerializeToString())
    quantization.quantize_static(
        str(source),
        str(path),
        Calibration(),
        quant_format=quantization.QuantFormat.QOperator,
        activation_type=getattr(quantization.QuantType, request.param),
        weight_type=quantization.QuantType.QInt8,
    )
    return read_onnx(path)


@pytest.mark.parametrize("engine", ENGINES)
def test_operators_on_whole_numbers_run_at_every_split_point(whole_numbers: OnnxGraph, engine: Engine) -> None:
    model = model_of(whole_numbers, engine, classes=10)
    names = [point.name for point in model.split_points]
    assert {"body.0", "body.1", "down", "join", "flatten", "output"} <= set(names)
    assert crossing_dtypes(model) & {"int8", "uint8"}
    expected = [whole(model, images(count)) for count in BATCHES]
    for point in model.split_points:  # sums of whole numbers are exact
        backbone, head = model.backbone(point.name), model.head(point.name)
        for count, results in zip(BATCHES, expected, strict=True):
            found = through_a_slot(point, backbone, head, images(count))
            for one, other in zip(found, results, strict=True):
                # The scale of the last values may be multiplied before or after the zero point is subtracted.
                assert (one - other).abs().max() <= 1e-6 * other.abs().max(), point.name


def test_openvino_computes_whole_numbers_like_onnx_runtime(whole_numbers: OnnxGraph) -> None:
    if "int8" not in crossing_dtypes(model_of(whole_numbers, classes=10)):
        pytest.skip("without VNNI, ONNX Runtime lets products of uint8 with int8 overflow")
    (found,), (expected,) = (whole(model_of(whole_numbers, engine, classes=10), images(4)) for engine in ENGINES[::-1])
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()  # both add whole numbers, and scale the sum
