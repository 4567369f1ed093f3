"""The sizes of a traced graph's values are those of a run."""

from __future__ import annotations

import numpy as np
import pytest
from torch import Tensor, fx, nn

from split_infer_ros.torch_graphs import value_sizes as module
from split_infer_ros.torch_graphs.value_sizes import TensorSize, value_sizes

IMAGES = (2, 3, 8, 8)


class Net(nn.Module):
    """Gives a tensor, several tensors, a number and a tensor with a length that depends on values."""

    def __init__(self, needs_values: bool) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)
        self.needs_values = needs_values

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        found = self.layer(images)
        best, places = found.flatten(1).topk(5)
        kept = best[best > best.size(0)] if self.needs_values else best
        return kept, places.bool()


def sizes_by_name(graph: fx.GraphModule) -> dict[str, object]:
    return {node.name: size for node, size in value_sizes(graph, IMAGES).items()}


@pytest.mark.parametrize("computed_parameters", [0, 1_000_000])
def test_sizes_are_those_of_a_run(computed_parameters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large network, which computes nothing, has the same sizes as a small one."""
    monkeypatch.setattr(module, "_MAX_COMPUTED_PARAMETERS", computed_parameters)
    found = sizes_by_name(fx.symbolic_trace(Net(needs_values=False)))
    layer = TensorSize((2, 4, 6, 6), np.dtype(np.float32))
    assert found["images"] == TensorSize(IMAGES, np.dtype(np.float32))
    assert found["layer"] == layer
    assert layer.nbytes == 2 * 4 * 6 * 6 * 4
    best, places = TensorSize((2, 5), np.dtype(np.float32)), TensorSize((2, 5), np.dtype(np.int64))
    assert tuple(found["topk"]) == (best, places)  # type: ignore[arg-type]
    assert found["output"] == (best, TensorSize((2, 5), np.dtype(np.bool_)))


def test_a_large_network_computes_if_a_shape_depends_on_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_COMPUTED_PARAMETERS", 0)
    found = sizes_by_name(fx.symbolic_trace(Net(needs_values=True)))
    assert found["size"] == 2
    assert isinstance(found["output"], tuple)
    assert isinstance(found["output"][0], TensorSize)
    assert len(found["output"][0].shape) == 1
