"""The executables refuse bad arguments with exit code 1 and one sentence, without a traceback.

Their main functions run in this process: starting Python and torch anew for each mistake would take minutes.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from ros_processes import Process
from safetensors.torch import save_file
from torchvision.models import resnet18

from split_infer_ros.nodes import backbone, camera, pipeline

Refuse = Callable[..., str]


@pytest.fixture
def refuse(ros_domain: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Refuse]:
    """A function that calls a main function with arguments that it must refuse, and returns its sentence."""

    def start(main: Callable[[], int], *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["executable", "--ros-args", *arguments])
        assert main() == 1
        stderr = capfd.readouterr().err
        assert "Traceback" not in stderr
        (sentence,) = [line for line in stderr.splitlines() if line.startswith("error: ")]
        return sentence

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield start
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Touch:
    """Code in a pickle: unpickling it would make a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batch_siz: 2", ["backbone has no parameter 'batch_siz'", "Did you mean 'batch_size'?"]),
        ("batch_size: two", ["batch_size cannot be 'two'", "a whole number from 0 to 256"]),
        ("batch_size: 1000", ["batch_size cannot be 1000", "a whole number from 0 to 256"]),
        ("image_topics: left", ["image_topics cannot be 'left'", "a list of texts"]),
        ("image_topics: [left, 3]", ["Couldn't parse params file"]),
        ("image_topics: ['not a topic']", ["image_topics cannot be ['not a topic']", "must not contain"]),
        ("image_topics: [image, /image]", ["image_topics cannot be ['image', '/image']", "each once"]),
        ("model: yolo", ["There is no model 'yolo'", "shapes, ssdlite320, ssd300"]),
        ("model: mymodels:make", ["model 'mymodels:make'", "set allow_user_code to true"]),
        ("split_point: nowhere", ["no split point 'nowhere'", "neck", "block3"]),
        ("device: tpu", ["device 'tpu' is not on this machine", "cpu"]),
        ("use_sim_time: 3", ["use_sim_time", "BOOL"]),
        ("}", ["Couldn't parse params file"]),
    ],
)
def test_bad_parameter_file_is_refused_in_a_sentence(
    refuse: Refuse, tmp_path: Path, text: str, words: list[str]
) -> None:
    path = tmp_path / "parameters.yaml"
    path.write_text(f"/**/backbone:\n  ros__parameters:\n    weights: none\n    {text}\n")
    sentence = refuse(backbone.main, "--params-file", str(path))
    for word in words:
        assert word in sentence


@pytest.mark.parametrize("text", ["word", "[a, list]", "3"])
def test_parameter_file_without_parameters_is_refused(refuse: Refuse, tmp_path: Path, text: str) -> None:
    path = tmp_path / "parameters.yaml"
    path.write_text(f"{text}\n")
    sentence = refuse(pipeline.main, "--params-file", str(path))
    assert f"{path} is no parameter file: it holds" in sentence


def test_argument_that_nobody_reads_is_refused(refuse: Refuse) -> None:
    """ROS's own end with ``--``. Without ``--ros-args``, a parameter would have no effect."""
    sentence = refuse(backbone.main, "-p", "weights:=none", "--", "model:=shapes")
    assert "The argument 'model:=shapes' is unknown" in sentence
    assert "--ros-args -p NAME:=VALUE" in sentence


def test_refusing_process_exits_with_1_and_leaves_nothing(ros_domain: int) -> None:
    with Process("pipeline", "--ros-args", "-p", "batch_sise:=2") as process:
        assert process.wait() == 1
        assert "error: " in process.printed
        assert "Traceback" not in process.printed
        assert process.leftovers == []


def test_missing_parameter_file_is_named(refuse: Refuse, tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere.yaml") in refuse(pipeline.main, "--params-file", str(tmp_path / "nowhere.yaml"))


def test_unusable_weights_are_refused_in_a_sentence(refuse: Refuse, tmp_path: Path) -> None:
    other, broken, evil = tmp_path / "other.safetensors", tmp_path / "broken.safetensors", tmp_path / "evil.pt"
    save_file(resnet18().state_dict(), other)
    broken.write_bytes(b"no weights at all")
    evil.write_bytes(pickle.dumps(Touch(tmp_path / "ran")))
    torch.save({"weight": Touch(tmp_path / "ran")}, tmp_path / "evil2.pt")
    for file, words in [
        (other, "another model's weights than shapes's"),
        (broken, "cannot be read as weights"),
        (evil, "cannot be read as weights"),
        (tmp_path / "evil2.pt", "cannot be read as weights"),
        (tmp_path / "nowhere.pt", "There is no weights file"),
        (tmp_path, "There is no weights file"),
    ]:
        sentence = refuse(backbone.main, "-p", f"weights:={file}")
        assert words in sentence
        assert str(file) in sentence
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["tenants:=[front, front]"], ["Tenants are listed twice: front"]),
        (["tenants:=[2nd]"], ["A tenant cannot be named '2nd'"]),
        (["tenants:=front"], ["tenants cannot be 'front'", "a list of texts"]),
        (["tenants:=[a]", "tenant.a.image_topic:=not a topic"], ["tenant.a.image_topic cannot be 'not a topic'"]),
        (["tenants:=[a]", "tenants:tenant.a.modle:=shapes"], ["'tenant.a.modle'", "Did you mean 'tenant.a.model'?"]),
        (["tenant.a.when_late:=never"], ["tenant.a.when_late cannot be 'never'", "finish, drop"]),
        (["tenants:=[a]", "model:=shapes"], ["has no parameter 'model'"]),
        (["tenants:=[a]", "device:=tpu"], ["device 'tpu' is not on this machine"]),
        (["tenants:=['']"], ["A tenant cannot be named ''", "letters and digits"]),
    ],
)
def test_tenants_process_refuses_bad_parameters(refuse: Refuse, given: list[str], words: list[str]) -> None:
    sentence = refuse(pipeline.main, *(word for row in given for word in ("-p", row)))
    for word in words:
        assert word in sentence


@pytest.mark.parametrize("source", ["folder:/nowhere", "video:/nowhere.mp4", "v4l2:/dev/nowhere", "moon"])
def test_missing_source_is_refused_in_a_sentence(refuse: Refuse, source: str) -> None:
    assert source.split(":")[-1] in refuse(camera.main, "-p", f"source:={source}")


def test_node_with_most_similar_name_refuses_a_typo(refuse: Refuse) -> None:
    sentence = refuse(pipeline.main, "-p", "batchsize:=4")
    assert "backbone has no parameter 'batchsize'" in sentence
    assert "Did you mean 'batch_size'?" in sentence


def test_parameter_unknown_to_its_node_is_refused(refuse: Refuse) -> None:
    assert "camera has no parameter 'batch_size'" in refuse(pipeline.main, "-p", "camera:batch_size:=2")


@pytest.mark.parametrize("error", [RuntimeError("odd"), KeyError("odd"), MemoryError(), RecursionError("odd")])
@pytest.mark.parametrize("moment", ["configure", "activate"])
def test_any_exception_of_a_start_is_said(
    refuse: Refuse, monkeypatch: pytest.MonkeyPatch, moment: str, error: Exception
) -> None:
    def fail(node: camera.CameraNode) -> None:
        raise error

    monkeypatch.setattr(camera.CameraNode, moment, fail)
    assert refuse(camera.main, "-p", "source:=none").startswith(f"error: {type(error).__name__}")


def test_a_users_model_that_exits_is_an_error(refuse: Refuse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    sentence = refuse(backbone.main, "-p", "model:=leaving:make", "-p", "allow_user_code:=true")
    assert "model 'leaving:make' cannot be made (SystemExit: 0)" in sentence


def test_an_argument_that_is_not_utf_8_is_named(refuse: Refuse) -> None:
    assert "'model:=caf\ufffd.onnx' is not UTF-8" in refuse(backbone.main, "-p", "model:=caf\udce9.onnx")


def test_ros_starts_without_a_home(ros_domain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("ROS_LOG_DIR", raising=False)
    with Process("camera", "--ros-args", "-p", "source:=nothing") as process:
        assert process.wait() == 1
        assert "source" in process.printed.partition("error: ")[2], process.printed
