"""What the decode of an entry gets, from engines that give tensors and from those that give arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.detections import Detections, Limits

OUTPUTS = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(2)


@pytest.mark.parametrize("decodes_arrays", [True, False])
@pytest.mark.parametrize("gives_arrays", [True, False])
def test_a_decode_gets_what_it_takes_without_a_copy(decodes_arrays: bool, gives_arrays: bool) -> None:
    given = [array if gives_arrays else torch.from_numpy(array) for array in OUTPUTS]
    taken: list[tuple[Any, ...]] = []

    def decode(outputs: tuple[Any, ...], limits: Limits) -> list[Detections]:
        taken.append(outputs)
        return []

    entry = replace(find_model("shapes"), decode=decode, decodes_arrays=decodes_arrays)
    assert entry.detections_of(given, Limits()) == []
    assert isinstance(taken[0], tuple)
    for output, array in zip(taken[0], OUTPUTS, strict=True):
        assert isinstance(output, np.ndarray if decodes_arrays else torch.Tensor)
        assert np.shares_memory(np.asarray(output), array)
        assert np.array_equal(np.asarray(output), array)


def test_a_decode_takes_tensors_unless_its_entry_says_arrays() -> None:
    assert not find_model("shapes").decodes_arrays


def test_arrays_of_bfloat16_are_float32() -> None:
    def decode(outputs: tuple[Any, ...], limits: Limits) -> list[Detections]:
        assert outputs[0].dtype == np.float32
        return [Detections.empty()]

    entry = replace(find_model("shapes"), decode=decode, decodes_arrays=True)
    assert len(entry.detections_of([torch.ones(1, 3, dtype=torch.bfloat16)], Limits())) == 1
