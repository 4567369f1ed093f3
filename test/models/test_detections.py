"""What a ``Detections`` holds: arrays, also if a decode gives tensors."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from split_infer_ros.models.detections import Detections

CHILD_S = 200  # a bound on the process that a test starts; the test's own bound lies above it


def test_tensors_become_arrays_of_the_same_memory() -> None:
    boxes, scores, labels = torch.rand(2, 4), torch.rand(2, requires_grad=True), torch.tensor([1, 0])
    found = Detections(boxes, scores, labels)
    assert found.boxes.dtype == found.scores.dtype == np.float32
    assert found.labels.dtype == np.int64
    assert len(found) == 2
    for array, tensor in ((found.boxes, boxes), (found.scores, scores), (found.labels, labels)):
        assert isinstance(array, np.ndarray)
        assert array.__array_interface__["data"][0] == tensor.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tensors_of_16_bits_become_float32(dtype: torch.dtype) -> None:
    found = Detections(torch.ones(1, 4, dtype=dtype), torch.ones(1, dtype=dtype), torch.zeros(1, dtype=torch.int64))
    assert found.boxes.dtype == found.scores.dtype == np.float32
    assert found.boxes.tolist() == [[1, 1, 1, 1]]


def test_arrays_stay_what_they_are() -> None:
    boxes, scores, labels = np.zeros((1, 4), np.float32), np.zeros(1, np.float32), np.zeros(1, np.int64)
    found = Detections(boxes, scores, labels)
    assert found.boxes is boxes
    assert found.scores is scores
    assert found.labels is labels


@pytest.mark.timeout(2 * CHILD_S)
def test_detections_need_no_torch() -> None:
    program = (
        "import sys\n"
        "from split_infer_ros import Detections, Limits\n"
        "print(len(Detections.empty()), Limits().max_detections, 'torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=CHILD_S, check=True)
    assert found.stdout == "0 100 False\n"
