"""With a packed file at hand, a model whose weights are streamed is never in memory as a whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import graph_of, network_of

from split_infer_ros.models.weights_source import weights_source
from split_infer_ros.split import load
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.torch_graphs.module_state import state_of
from split_infer_ros.weight_streaming.pack import pack_model
from split_infer_ros.weight_streaming.packed_file import read_header
from split_infer_ros.weight_streaming.packed_weights import find_packed
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.settings import WeightsSettings
from split_infer_ros.weight_streaming.streaming import stream_head
from split_infer_ros.weight_streaming.weightless_loading import load_streamable

SPEC = ModelSpec("shapes", "default", "cpu")
STREAMED = WeightsSettings(weights_residency=Residency.TWO_STAGE)
MAX_START = 1.3  # times the memory of later passes
CHILD_S = 200  # a bound on the process that a test starts; the test's own bound lies above it
RUN = Path(__file__).parents[1] / "helpers" / "weightless_start.py"


@pytest.fixture(autouse=True)
def own_process_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is shared with other tests, and packed files go to a folder of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget_models(monkeypatch)


def is_weightless(model: SplitModel) -> bool:
    return all(tensor.untyped_storage().nbytes() < 16 for tensor in state_of(graph_of(model)).values())


def forget_models(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_networks", "_loaded"):
        monkeypatch.setattr(load, name, {})


def pack_here(monkeypatch: pytest.MonkeyPatch) -> SplitModel:
    """Packs the model's file in the cache folder as a node does at its first start. Returns the whole model."""
    model = load_streamable(SPEC, STREAMED)
    assert not is_weightless(model), "there was no file"
    find_packed(network_of(model), "", num_threads=1, batch_size=1)
    forget_models(monkeypatch)
    return model


def outputs(model: SplitModel, images: torch.Tensor) -> list[torch.Tensor]:
    with torch.inference_mode():
        return list(model.head("default")(*model.backbone("default")(images)))


def test_second_start_needs_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pack_here(monkeypatch)
    weightless = load_streamable(SPEC, STREAMED)
    assert is_weightless(weightless)
    assert (weightless.network.fingerprint, weightless.split_points) == (whole.network.fingerprint, whole.split_points)
    images = torch.rand(1, *whole.entry.image_shape).contiguous(memory_format=torch.channels_last)
    # The same graph with the same values, which were read back from the file.
    assert all(map(torch.equal, outputs(weightless, images), outputs(whole, images)))


def test_head_streams_from_the_file_of_a_weightless_network(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pack_here(monkeypatch)
    weightless = load_streamable(SPEC, STREAMED)
    split_point = weightless.split_point("default")
    partition = stream_head(weightless, split_point, STREAMED, num_threads=1, batch_size=1)
    assert partition is not None
    features = [torch.rand(1, *spec.shape) for spec in split_point.tensors]
    with torch.inference_mode():
        found, expected = partition(*features), whole.head("default")(*features)
    partition.close()
    # A streamed layer may use another kernel than a resident one.
    torch.testing.assert_close(list(found), list(expected), rtol=1e-4, atol=1e-5)
    assert is_weightless(weightless)


def test_resident_partition_loads_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    pack_here(monkeypatch)
    assert not is_weightless(load_streamable(SPEC, WeightsSettings()))


def test_model_that_is_loaded_already_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    pack_here(monkeypatch)
    whole = load_model(SPEC)
    assert load_streamable(SPEC, STREAMED) is whole


def test_users_file_is_used_if_its_weights_are_those_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(SPEC)
    path = tmp_path / "mine.weights"
    assert pack_model(network_of(model), path, num_threads=1).source == weights_source("shapes", "default")
    forget_models(monkeypatch)
    settings = WeightsSettings(weights_residency=Residency.TWO_STAGE, weights_file=str(path))
    assert is_weightless(load_streamable(SPEC, settings))
    other = load_streamable(ModelSpec("shapes", "none", "cpu"), settings)
    assert not is_weightless(other), "the file has other weights, so streaming can name the difference"


def test_file_without_a_source_does_not_replace_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = load_model(SPEC)
    monkeypatch.setattr(model.network, "weights_source", "")
    path = find_packed(network_of(model), "", num_threads=1, batch_size=1)
    assert read_header(path).source == ""
    forget_models(monkeypatch)
    assert not is_weightless(load_streamable(SPEC, STREAMED))


def test_damaged_and_foreign_files_are_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pack_here(monkeypatch)
    (path,) = (tmp_path / "split_infer_ros" / "weights").iterdir()
    path.with_name("a.weights").write_bytes(path.read_bytes()[:5000])
    path.with_name("b.weights").write_text("something else")
    assert is_weightless(load_streamable(SPEC, STREAMED))


def test_source_of_a_file_is_its_content(tmp_path: Path) -> None:
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    first.write_bytes(b"weights")
    second.write_bytes(b"weights")
    source = weights_source("shapes", str(first))
    assert source == weights_source("shapes", str(second)) != weights_source("shapes", "none")
    first.write_bytes(b"other weights")
    assert weights_source("shapes", str(first)) != source
    assert weights_source("package.module:factory", "default") == "", "a factory may give other values each time"


def run_alone(folder: Path) -> dict[str, Any]:
    """Runs AlexNet, 244 MB, on one thread in a process of its own."""
    environment = os.environ | {"XDG_CACHE_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(RUN), "alexnet", "two_stage"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=CHILD_S, check=False)
    assert done.returncode == 0, done.stderr
    *_, kind, found = done.stdout.splitlines()
    return {"kind": kind, **json.loads(found)}


@pytest.mark.timeout(3 * CHILD_S)  # there are two processes
def test_model_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    """The first start packs the file, for which all weights are loaded. The second start has the file.

    Features of a batch take some 30 MB, and 61 MB were seen in all. So the bound is far below the model's 244 MB.
    """
    first, second = run_alone(tmp_path), run_alone(tmp_path)
    assert (first["kind"], second["kind"]) == ("alexnet is whole", "alexnet is weightless")
    assert first["start_bytes"] > first["weight_bytes"]
    assert second["start_bytes"] <= MAX_START * second["steady_bytes"]
    assert second["start_bytes"] < second["weight_bytes"] / 3, "else the bound above would mean little"
    assert len(set(first["logits"])) > 1
    assert second["logits"] == first["logits"]  # the same layers on the same values with one thread
