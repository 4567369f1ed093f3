"""Parts of torch that other engines execute, by export to ONNX."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from comparisons import rounding
from torch import Tensor, fx, nn

from split_infer_ros.buffers.host_arrays import FLOAT32, Values
from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.engines import exported_part as module
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.engines.exported_part import exported_part
from split_infer_ros.engines.onnxruntime_part import OnnxRuntimePart
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx.conversion.export import export_key, export_program
from split_infer_ros.onnx.model_source import model_source
from split_infer_ros.split.graph import prepare

pytestmark = pytest.mark.numeric

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)

IMAGES = (TensorSpec("images", (3, 16, 16), FLOAT32),)
ROUNDING = 1e-5  # sums of at most 72 products in any order; see small_graphs.ROUNDING


class Net(nn.Module):
    """Convolutions with batch norms, a branch and two outputs, one of which is an intermediate value."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.SiLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.last = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x)
        x = x + self.second(x)
        return x, self.last(x.mean((2, 3)))


def traced(seed: int = 0) -> fx.GraphModule:
    torch.manual_seed(seed)
    return prepare(Net(), IMAGES[0].shape)  # type: ignore[arg-type]


def images(count: int) -> Tensor:
    return torch.randn((count, 3, 16, 16), generator=torch.Generator().manual_seed(count))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "split_infer_ros" / "onnx"


programs: dict[str, list[Any]] = defaultdict(list)


def export_program_twice(part: fx.GraphModule, inputs: Sequence[TensorSpec]) -> Any:
    """Exports the same part twice at most. Later it returns the second export, since exports take seconds."""
    made_before = programs[export_key(part, inputs)]
    if len(made_before) < 2:
        made_before.append(export_program(part, inputs))
    return made_before[-1]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts exports and comparisons."""
    counts: Counter[str] = Counter()

    def counted(name: str, original: Callable[..., Any]) -> None:
        def run(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, run)

    counted("export_program", export_program_twice)
    counted("_compare", module._compare)
    return counts


def made(part: fx.GraphModule, version: str = "1") -> EnginePart:
    return exported_part(
        part, IMAGES, OnnxRuntimePart, name="net", engine=Engine.ONNXRUNTIME, version=version, precision=Precision.FP32
    )


def assert_right(executable: EnginePart, part: fx.GraphModule) -> None:
    with torch.inference_mode():
        for size in (2, 1, 3):
            for found, expected in zip(executable(images(size)), part(images(size)), strict=True):
                assert expected.std() > 0.01
                assert rounding(found, expected) <= ROUNDING


def test_an_exported_part_gives_torchs_results_for_any_batch() -> None:
    part = traced()
    executable = made(part)
    assert executable.can_run_into
    assert_right(executable, part)


def test_the_part_itself_is_not_changed() -> None:
    part = traced()
    before = {name: (id(tensor), tensor.clone()) for name, tensor in part.named_parameters()}
    made(part)
    assert {name: id(tensor) for name, tensor in part.named_parameters()} == {
        name: identity for name, (identity, _) in before.items()
    }
    assert all(torch.equal(tensor, before[name][1]) for name, tensor in part.named_parameters())


def test_a_part_is_exported_and_compared_once(work: Counter[str], folder: Path) -> None:
    made(traced())
    assert work == {"export_program": 1, "_compare": 1}
    assert_right(made(traced()), traced())
    assert work == {"export_program": 1, "_compare": 1}
    made(traced(), version="2")  # the same model, another version of the engine
    assert work == {"export_program": 1, "_compare": 2}
    assert sorted(path.suffix for path in folder.iterdir()) == [".agreed", ".agreed", ".data", ".onnx", ".sha256"]


@pytest.mark.parametrize("suffix", [".onnx", ".onnx.data", ".sha256"])
def test_a_damaged_file_is_made_again(work: Counter[str], folder: Path, suffix: str) -> None:
    made(traced(seed=1))
    (path,) = folder.glob(f"*{suffix}")
    other = path.read_bytes()
    for file in folder.iterdir():
        file.unlink()
    made(traced())
    (path,) = folder.glob(f"*{suffix}")
    good = path.read_bytes()
    for damaged in (b"", good[:-10], b"no model", bytes(len(good)), other):
        path.write_bytes(damaged)
        exports = work["export_program"]
        assert_right(made(traced()), traced())
        # The graph of another network of the same operations is the same graph.
        assert work["export_program"] == exports + (damaged != good)
        assert path.read_bytes() == good


def test_a_file_that_is_gone_is_made_again(work: Counter[str], folder: Path) -> None:
    made(traced())
    for path in sorted(folder.iterdir()):
        work.clear()
        path.unlink()
        assert_right(made(traced()), traced())
        assert path.exists()
        expected = {"_compare": 1} if path.suffix == ".agreed" else {"export_program": 1}  # the same content agreed
        assert work == expected, path.suffix


def test_weights_are_in_a_file_of_their_own_which_engines_map(folder: Path) -> None:
    graph = made(traced()).graph
    assert graph.path is not None
    assert not any(tensor.raw_data for tensor in graph.proto.graph.initializer if tensor.data_location)
    weights = sum(tensor.nbytes for tensor in traced().state_dict().values() if tensor.is_floating_point())
    (data,) = folder.glob("*.data")
    assert data.stat().st_size >= 0.7 * weights, "small tensors are in the graph"
    with model_source(graph) as source:
        assert source == str(graph.path)


def test_a_folder_that_cannot_be_written_is_said(
    folder: Path, work: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder.parent.mkdir()
    folder.write_text("no folder")
    with caplog.at_level(logging.WARNING):
        assert_right(made(traced()), traced())
    assert any("so the network is exported again at each start" in message for message in caplog.messages)


class Wrong(OnnxRuntimePart):
    """An engine that errs by a thousandth."""

    def run_prepared(self, outputs: Sequence[Values | None], values: Sequence[Values]) -> tuple[Values, ...]:
        found = super().run_prepared(outputs, values)
        found[0][...] *= 1.001
        return found


def test_a_part_that_disagrees_is_refused(folder: Path, work: Counter[str]) -> None:
    pattern = r"^net cannot run on engine onnxruntime: its results differ from torch's by 0\.00\d+ of the largest"
    with pytest.raises(ConfigurationError, match=pattern):
        exported_part(
            traced(), IMAGES, Wrong, name="net", engine=Engine.ONNXRUNTIME, version="1", precision=Precision.FP32
        )
    assert not list(folder.glob("*.agreed"))
    assert_right(made(traced()), traced())
    assert work == {"export_program": 1, "_compare": 2}, "the export itself is right, so other engines use it"


class Unknown(nn.Module):
    """Has an operation that ONNX does not have."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x)


def test_what_cannot_be_exported_is_refused() -> None:
    part = fx.symbolic_trace(Unknown())
    with pytest.raises(ConfigurationError, match=r"^net cannot run on engine onnxruntime, since torch cannot export"):
        exported_part(
            part,
            IMAGES,
            partial(OnnxRuntimePart),
            name="net",
            engine=Engine.ONNXRUNTIME,
            version="1",
            precision=Precision.FP32,
        )
