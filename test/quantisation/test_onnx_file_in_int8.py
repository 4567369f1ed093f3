"""A user's ONNX file in int8: kept, run and split like a model of the catalogue; a loss is kept only if accepted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

pytestmark = pytest.mark.numeric

for package in ("onnx", "onnxruntime", "openvino", "nncf"):
    pytest.importorskip(package)

from onnx import helper, numpy_helper  # noqa: E402
from onnx_files import network, ultralytics  # noqa: E402

from split_infer_ros import __main__  # noqa: E402
from split_infer_ros.buffers.host_arrays import Floats, as_array, as_tensor  # noqa: E402
from split_infer_ros.engines.engine import Engine  # noqa: E402
from split_infer_ros.engines.execution_config import ExecutionConfig  # noqa: E402
from split_infer_ros.engines.precision import Precision  # noqa: E402
from split_infer_ros.engines.precision_checks import can_use_any  # noqa: E402
from split_infer_ros.errors import ConfigurationError  # noqa: E402
from split_infer_ros.quantisation import quality, quantise  # noqa: E402
from split_infer_ros.quantisation.samples import Samples  # noqa: E402
from split_infer_ros.quantisation.scope import Scope, ignored_nodes  # noqa: E402
from split_infer_ros.runtime.num_threads import run_with_threads  # noqa: E402
from split_infer_ros.split.load import load_model  # noqa: E402
from split_infer_ros.split.model import SplitModel  # noqa: E402
from split_infer_ros.split.model_spec import ModelSpec  # noqa: E402
from split_infer_ros.split.quantised_network import QuantisedNetwork  # noqa: E402

INT8 = ExecutionConfig(precision=Precision.INT8)
SIDE, HIDDEN = 32, 64
Quantise = Callable[..., int]


def write_detector(path: Path) -> None:
    """Writes a detector of the YOLO family: patches of 8x8 pixels, two layers with weights, and a sigmoid."""
    metadata = ultralytics(imgsz=f"[{SIDE}, {SIDE}]", names="{0: 'a', 1: 'b', 2: 'c'}")
    model = network(21, 7, side=SIDE, scale=[32, 32, 16, 16, 1, 1, 1], metadata=metadata, transposed=True)
    random = np.random.default_rng(1)
    first = random.normal(0, 0.5, (3 * (SIDE // 8) ** 2, HIDDEN)).astype(np.float32)
    second = random.normal(0, 1.0, (HIDDEN, 21 * 7)).astype(np.float32)
    for tensor in [each for each in model.graph.initializer if each.name == "weights"]:
        tensor.CopyFrom(numpy_helper.from_array(second, "weights"))
    model.graph.initializer.append(numpy_helper.from_array(first, "first"))
    place = next(index for index, node in enumerate(model.graph.node) if node.op_type == "Gemm")
    model.graph.node[place].input[0] = "hidden"
    model.graph.node.insert(place, helper.make_node("Relu", ["products"], ["hidden"]))
    model.graph.node.insert(place, helper.make_node("MatMul", ["flat", "first"], ["products"]))
    path.write_bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a detector, images of coloured patches, and the user's cache."""
    folder = tmp_path_factory.mktemp("file")
    random = np.random.default_rng(2)
    for index in range(50):
        patches = random.integers(0, 256, (SIDE // 8, SIDE // 8, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / f"{index:02}.png"), patches.repeat(8, 0).repeat(8, 1))
    write_detector(folder / "mine.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Quantise:
    def command(*options: str) -> int:
        arguments = ["quantise", str(folder / "mine.onnx"), "--images", str(folder), *options]
        monkeypatch.setattr("sys.argv", ["split_infer_ros", *arguments])
        return __main__.main()

    return command


def test_a_loss_is_kept_only_if_the_user_accepts_it(
    run: Quantise, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No model agrees by more than 1, so all candidates lose, and the message says where.

    Without the first and the last layers, nothing of this model is left to quantise.
    """
    scopes: list[Scope] = []

    def note(graph: object, scope: Scope) -> list[str]:
        scopes.append(scope)
        return ignored_nodes(graph, scope)  # type: ignore[arg-type]

    monkeypatch.setattr(quality, "MIN_AGREEMENT", 1.01)
    monkeypatch.setattr(quantise, "ignored_nodes", note)
    spec = ModelSpec(str(folder / "mine.onnx"), device="cpu", execution_config=INT8)
    assert run() == 1
    assert scopes == [Scope.ALL_LAYERS, Scope.ALL_BUT_LAST]
    told = capsys.readouterr().err
    assert "Not kept: int8 agrees with float32 by" in told
    assert "The same graph in ONNX Runtime agrees with float32 by" in told
    with pytest.raises(ConfigurationError, match="was not quantised"):
        load_model(spec)
    assert run("--accept-loss") == 0
    assert "Kept for precision int8" in capsys.readouterr().out
    model = load_model(spec)
    assert "was quantised in spite of a loss: int8 agrees with float32 by" in model.network.note
    assert (model.precision, model.execution_config.engine) == (Precision.INT8, Engine.OPENVINO)


def results_at(model: SplitModel, split_point: str, images: Floats) -> Floats | str:
    """Returns the model's results, or the sentence with which the engine refuses a partition."""
    try:
        (found,) = model.head(split_point)(*model.backbone(split_point)(images))
    except ConfigurationError as error:
        return str(error)
    return found


def mean_difference(found: Floats, expected: Floats) -> float:
    """Returns the mean difference as a share of the largest value."""
    return float(np.abs(found - expected).mean() / np.abs(expected).max())


def test_split_points_of_a_file_stay_in_int8(run: Quantise, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers add up exactly. What stays in float32 may round by a step of int8, 1/255 of the largest value."""
    monkeypatch.setattr(quality, "MIN_AGREEMENT", 0.0)
    assert run() == 0
    spec = ModelSpec(str(folder / "mine.onnx"), device="cpu")
    source = load_model(spec)
    model = load_model(ModelSpec(spec.name, device="cpu", execution_config=INT8))
    names = [point.name for point in model.split_points]
    assert names == [point.name for point in source.split_points]
    assert len(names) > 2
    images = np.concatenate(list(Samples(model.entry, sorted(folder.glob("*.png"))[:4])))
    (whole,), (expected,) = model.head("input")(images), source.head("input")(images)
    for name in names:
        found = results_at(model, name, images)
        if isinstance(found, str):  # without AVX-512, OpenVINO runs no head of dense layers in int8 alone
            assert not can_use_any(("avx512f",)), found
            assert "OpenVINO cannot run" in found
            continue
        assert mean_difference(found, whole) <= 1e-3, name
    assert 0 < mean_difference(whole, expected) < 0.05


def test_other_modules_log_as_before(run: Quantise, monkeypatch: pytest.MonkeyPatch) -> None:
    """NNCF changes the root logger's handlers; what the process logged before, it logs afterwards."""
    monkeypatch.setattr(quality, "MIN_AGREEMENT", 0.0)
    root, handler = logging.getLogger(), logging.StreamHandler()
    handler.setLevel(logging.INFO)
    monkeypatch.setattr(root, "handlers", [handler])
    before = root.level, logging.getLoggerClass()
    assert run() == 0
    assert (root.handlers, handler.level) == ([handler], logging.INFO)
    assert (root.level, logging.getLoggerClass()) == before


@pytest.mark.parametrize("batch_size", [1, 2, 4])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_products_in_a_row_give_onnx_runtimes_results(
    run: Quantise, folder: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int, num_threads: int
) -> None:
    """OpenVINO alone fuses them, which gives arbitrary numbers for one batch size and one thread.

    ONNX Runtime computes the same graph. Sums of integers are exact. A rounding before a quantiser may move a value by
    a step, which changes a logit by less than a hundredth of the largest.
    """
    from onnx_nets import run as run_alone

    monkeypatch.setattr(quality, "MIN_AGREEMENT", 0.0)
    assert run() == 0
    model = load_model(ModelSpec(str(folder / "mine.onnx"), device="cpu", execution_config=INT8))
    assert isinstance(model.network, QuantisedNetwork)
    given = np.concatenate(list(Samples(model.entry, sorted(folder.glob("*.png"))[:batch_size])))
    (expected,) = map(as_array, run_alone(model.network.prepared.graph, as_tensor(given)))
    (found,) = run_with_threads(num_threads, lambda: model.head("input")(given))
    assert expected.std() > 1.0
    assert mean_difference(found, expected) <= 1e-2
