from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from split_infer_ros.errors import WeightsError
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.darknet_weights import read_darknet_weights
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.weights import load_weights
from split_infer_ros.models.yolo import conv
from split_infer_ros.models.yolov3 import Yolov3
from split_infer_ros.models.yolov4 import Yolov4

NEW_HEADER = struct.pack("<iiiq", 0, 2, 5, 32_013_312)
OLD_HEADER = struct.pack("<iiii", 0, 1, 0, 1000)


class Small(nn.Module):
    """Two convolutions, of which the one that runs first is registered last."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Conv2d(4, 6, 1)
        self.first = conv(3, 4, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.first(images))


def entry() -> ModelEntry:
    return replace(find_model("yolov4"), name="small", build=Small)


def file_of(folder: Path, header: bytes = NEW_HEADER) -> tuple[Path, list[np.ndarray]]:
    """A file of Darknet's for the small network, and its parts: biases, scales, means, variances, weights, ..."""
    rng = np.random.default_rng(0)
    shapes: list[tuple[int, ...]] = [(4,), (4,), (4,), (4,), (4, 3, 3, 3), (6,), (6, 4, 1, 1)]
    parts = [rng.uniform(0.5, 1.5, shape).astype("<f4") for shape in shapes]
    path = folder / "small.weights"
    path.write_bytes(header + b"".join(part.tobytes() for part in parts))
    return path, parts


@pytest.mark.parametrize("header", [NEW_HEADER, OLD_HEADER])
def test_darknets_file_is_loaded(tmp_path: Path, header: bytes) -> None:
    path, (bias, scale, mean, variance, weights, last_bias, last_weights) = file_of(tmp_path, header)
    model = Small().eval()
    load_weights(model, entry(), str(path))
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    expected = {
        "first.0.weight": weights,
        "first.1.weight": scale,
        "first.1.bias": bias,
        "first.1.running_mean": mean,
        "first.1.running_var": variance,
        "last.weight": last_weights,
        "last.bias": last_bias,
    }
    assert set(state) == {*expected, "first.1.num_batches_tracked"}
    for name, values in expected.items():
        assert np.array_equal(state[name], values), name


@pytest.mark.parametrize(
    "spoil",
    [lambda content: content[:-4], lambda content: content + bytes(4), lambda content: content[:10], lambda _: b""],
    ids=["short", "long", "header", "empty"],
)
def test_a_file_of_another_size_is_refused(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    path, _ = file_of(tmp_path)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(WeightsError, match=r"small.weights has [\d,]+ bytes; Darknet's .* has 6\d\d\.") as refusal:
        load_weights(Small(), entry(), str(path))
    assert "weights_file" in str(refusal.value)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "small.weights").mkdir()
    with pytest.raises(WeightsError, match="There is no weights file"):
        load_weights(Small(), entry(), str(tmp_path / "small.weights"))


def test_other_models_take_a_state_dict_of_that_name(tmp_path: Path) -> None:
    of_shapes, path = find_model("shapes"), tmp_path / "own.weights"
    model = of_shapes.build()
    torch.save(model.state_dict(), path)
    load_weights(model, of_shapes, str(path))


@pytest.mark.parametrize(("build", "nbytes"), [(Yolov3, 248_007_048), (Yolov4, 257_717_640)])
def test_the_published_files_have_the_networks_size(
    tmp_path: Path, build: Callable[[], nn.Module], nbytes: int
) -> None:
    (tmp_path / "short.weights").write_bytes(NEW_HEADER)
    with torch.device("meta"):
        network = build()
    with pytest.raises(WeightsError, match=f"file of this network has {nbytes:,}"):
        read_darknet_weights(network, tmp_path / "short.weights")
