"""Models that OpenVINO compiled are kept in the user's cache."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from split_infer_ros.engines import compiled_blobs
from split_infer_ros.engines.compiled_blobs import CompiledBlob
from split_infer_ros.images.pixel_input import PixelInput
from split_infer_ros.telemetry import machine

pytest.importorskip("openvino")
pytest.importorskip("onnx")
import openvino
from onnx_nets import attention, branching, resized, sized
from small_graphs import IMAGE_SHAPE, images, small_graph

from split_infer_ros.engines.openvino_part import OpenVinoPart

pytestmark = pytest.mark.numeric

SHAPE = (1, *IMAGE_SHAPE)
PROPERTIES = {
    "INFERENCE_PRECISION_HINT": "f32",
    "INFERENCE_NUM_THREADS": 1,
    "NUM_STREAMS": 1,
    "PERFORMANCE_HINT": "LATENCY",
    "ENABLE_CPU_PINNING": False,
}
PIXELS = PixelInput(np.dtype(np.uint8), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the blobs, which does not exist yet. Nothing was said about it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "split_infer_ros" / "blobs"


def blob(**changes: Any) -> CompiledBlob:
    given: dict[str, Any] = {
        "core": openvino.Core(),
        "device": "CPU",
        "properties": PROPERTIES,
        "graph": small_graph(),
        "shapes": [SHAPE],
        "pixels": None,
    }
    return CompiledBlob(**{**given, **changes})


def compiled(graph: Any = None, shape: tuple[int, ...] | None = SHAPE, **properties: Any) -> Any:
    core = openvino.Core()
    model = core.read_model((graph or small_graph()).proto.SerializeToString(), b"")
    if shape is not None:
        model.reshape({model.inputs[0]: list(shape)})
    return core.compile_model(model, "CPU", {**PROPERTIES, **properties})


def results(model: Any, values: Any) -> list[np.ndarray]:
    request = model.create_infer_request()
    request.infer([values])
    return [request.get_output_tensor(index).data.copy() for index in range(len(model.outputs))]


def kept() -> CompiledBlob:
    made = blob()
    made.keep(compiled())
    return made


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_is_kept_gives_equal_bits(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert blob().load() is None
    assert not caplog.records
    model = compiled()
    blob().keep(model)
    (path,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    found = blob().load()
    values = images(1).numpy()
    for one, other in zip(results(found, values), results(model, values), strict=True):
        assert np.array_equal(one, other)
    assert found.get_property("INFERENCE_NUM_THREADS") == 1
    assert not warnings(caplog)


@pytest.mark.parametrize("make", [attention, branching, resized, sized])
def test_networks_of_all_kinds_give_equal_bits(make: Callable[[], Any]) -> None:
    graph = make()
    (tensor,) = graph.inputs
    shape = tuple(length or 1 for length in tensor.shape)
    values = np.random.default_rng(0).random(shape, np.float32)
    model = compiled(graph, shape)
    made = blob(graph=graph, shapes=[shape])
    made.keep(model)
    for one, other in zip(results(made.load(), values), results(model, values), strict=True):
        assert np.array_equal(one, other)


def test_all_batch_sizes_in_one_file() -> None:
    model = compiled(shape=None)
    made = blob(shapes=None)
    made.keep(model)
    found = made.load()
    for size in (3, 1, 2):
        values = images(size).numpy()
        for one, other in zip(results(found, values), results(model, values), strict=True):
            assert np.array_equal(one, other)


def test_a_process_may_keep_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CompiledBlob, "are_kept", False)
    blob().keep(compiled())
    assert not folder.exists()


def test_a_later_part_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for_images, for_pixels = OpenVinoPart(small_graph()), OpenVinoPart(small_graph()).for_pixels(PIXELS)
    assert for_pixels is not None
    pixels = (images(2).permute(0, 2, 3, 1).abs() * 60).byte()
    expected = for_images(images(2)), for_pixels(pixels)

    def compile_model(*arguments: Any) -> Any:
        raise AssertionError("it is compiled again")

    monkeypatch.setattr(openvino.Core, "compile_model", compile_model)
    later = OpenVinoPart(small_graph())
    later_for_pixels = later.for_pixels(PIXELS)
    assert later_for_pixels is not None
    for found, before in zip((later(images(2)), later_for_pixels(pixels)), expected, strict=True):
        assert all(one.equal(other) for one, other in zip(found, before, strict=True))


def test_the_name_depends_on_all_that_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    other_mean = PixelInput(PIXELS.dtype, (0.4, 0.5, 0.5), PIXELS.std)
    others = [
        blob(graph=sized()),
        blob(shapes=[(2, *IMAGE_SHAPE)]),
        blob(shapes=None),
        blob(pixels=PIXELS),
        blob(pixels=other_mean),
        blob(properties={**PROPERTIES, "INFERENCE_PRECISION_HINT": "f16"}),
        blob(properties={**PROPERTIES, "INFERENCE_NUM_THREADS": 2}),
        blob(properties={**PROPERTIES, "INFERENCE_NUM_THREADS": 2, "NUM_STREAMS": 2}),
        blob(properties={**PROPERTIES, "SNIPPETS_MODE": "DISABLE"}),
    ]
    paths = [blob().path, *(each.path for each in others)]
    assert blob(properties=dict(reversed(PROPERTIES.items()))).path == paths[0], "and not on the order"
    for name, value in {
        "cpu_name": "another",
        "cpu_extensions": frozenset({"avx512f"}),
        "onednn_limit": "AVX2",
    }.items():
        with monkeypatch.context() as patch:
            patch.setattr(compiled_blobs, name, lambda value=value: value)
            paths.append(blob().path)
    with monkeypatch.context() as patch:
        patch.setattr(openvino, "get_version", lambda: "2031.1")
        paths.append(blob().path)
    assert len(set(paths)) == len(paths)


def test_a_processor_is_told_from_another(tmp_path: Path) -> None:
    """Hypervisors give many processors one name. Their extensions differ."""
    lines = {"one": "model name : AMD EPYC\nflags : avx2 avx512f\n", "other": "model name : AMD EPYC\nflags : avx2\n"}
    found = []
    for name, text in lines.items():
        (tmp_path / name).write_text(text)
        found.append((machine.cpu_name(tmp_path / name), machine.cpu_extensions(tmp_path / name)))
    assert found[0] != found[1]


@pytest.mark.parametrize("place", [0, 30, 100, 500, -1])
def test_a_damaged_file_is_not_used(place: int, caplog: pytest.LogCaptureFixture) -> None:
    made = kept()
    content = bytearray(made.path.read_bytes())
    content[place] ^= 1
    made.path.write_bytes(content)
    assert blob().load() is None
    assert blob().load() is None
    (warning,) = warnings(caplog)
    assert f"{made.path} is not as it was written" in warning
    blob().keep(compiled())
    assert blob().load() is not None


@pytest.mark.parametrize("length", [0, 10, 97, 2000])
def test_half_a_file_is_not_used(length: int, caplog: pytest.LogCaptureFixture) -> None:
    made = kept()
    made.path.write_bytes(made.path.read_bytes()[:length])
    assert blob().load() is None
    assert len(warnings(caplog)) == 1


def test_what_openvino_does_not_take_is_compiled_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept()

    def refuse(*arguments: Any) -> Any:
        raise RuntimeError("made by another version")

    with monkeypatch.context() as patch:
        patch.setattr(openvino.Core, "import_model", refuse)
        assert blob().load() is None
    (warning,) = warnings(caplog)
    assert "made by another version" in warning
    assert blob().load() is not None


def test_a_full_disk_costs_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    part = OpenVinoPart(small_graph())
    assert part(images(1))[0].shape[0] == 1
    assert part(images(2))[0].shape[0] == 2
    (warning,) = warnings(caplog)
    assert "No space left on device" in warning
    assert not list(blob().path.parent.iterdir())


def test_a_folder_that_cannot_be_made_costs_one_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder.parent.write_text("a file")
    part = OpenVinoPart(small_graph())
    assert part(images(1))[0].shape[0] == 1
    assert part(images(2))[0].shape[0] == 2
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o707])
def test_a_folder_that_others_may_enter_is_not_used(mode: int, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = kept()
    folder.chmod(mode)
    assert made.load() is None
    made.keep(compiled())
    (warning,) = warnings(caplog)
    assert "must belong to this user, and have mode 700" in warning
    folder.chmod(0o700)
    assert made.load() is not None


def test_a_folder_of_somebody_else_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = kept()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert made.load() is None
    assert len(warnings(caplog)) == 1


def test_a_pipe_is_not_waited_for(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.mkdir(mode=0o700, parents=True)
    os.mkfifo(blob().path)
    assert blob().load() is None
    assert len(warnings(caplog)) == 1


def test_other_devices_keep_nothing(folder: Path) -> None:
    made = blob(device="NPU")
    assert made.load() is None
    made.keep(compiled())
    assert not folder.exists()


WRITER = """
import sys
sys.path[:0] = {paths}
from test_compiled_blobs import blob, compiled
model = compiled()
for _ in range(20):
    blob().keep(model)
    assert blob().load() is not None
"""


def test_processes_write_at_the_same_time(folder: Path) -> None:
    """Nobody reads half a file, and nothing is left behind under a temporary name."""
    code = WRITER.format(paths=[str(Path(__file__).parent), str(Path(__file__).parents[1] / "helpers")])
    writers = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(2)]
    complaints = [writer.communicate(timeout=100)[1].decode() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], complaints
    assert not any("is not as it was written" in each for each in complaints)
    assert [path.name for path in folder.iterdir()] == [blob().path.name]
