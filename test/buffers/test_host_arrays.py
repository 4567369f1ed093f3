from __future__ import annotations

import gc
import warnings

import numpy as np
import pytest
import torch

from split_infer_ros.buffers.host_arrays import as_tensor


def read_only(padding: int) -> np.ndarray:
    """A view of bytes, (4, 5, 3), whose rows are padded."""
    step = 15 + padding
    rows = np.frombuffer(bytes(range(4 * step)), np.uint8).reshape(4, step)
    return rows[:, :15].reshape(4, 5, 3)


@pytest.mark.parametrize("padding", [0, 2])
def test_a_read_only_array_is_viewed_without_a_warning(padding: int) -> None:
    array = read_only(padding)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = as_tensor(array)
    assert tensor.data_ptr() == array.ctypes.data
    assert tensor.stride() == array.strides
    assert np.array_equal(tensor.numpy(), array)
    assert not array.flags.writeable


def test_the_view_keeps_the_arrays_memory() -> None:
    tensor = as_tensor(read_only(2))
    gc.collect()
    assert np.array_equal(tensor.numpy(), read_only(2))


def test_writes_to_a_writable_array_are_seen() -> None:
    array = np.zeros((2, 3), np.float32)
    tensor = as_tensor(array)
    array[1, 2] = 7
    assert torch.equal(tensor, torch.tensor([[0.0, 0, 0], [0, 0, 7]]))
