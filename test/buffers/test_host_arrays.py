from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from split_infer_ros.buffers.host_arrays import (
    ALIGNMENT,
    BYTE,
    FLOAT16,
    FLOAT32,
    Array,
    DType,
    as_array,
    as_tensor,
    bfloat16,
    copy_into,
    dtype_named,
    dtype_of,
    empty_array,
    is_floating,
    to_host,
    torch_dtype,
    unlocked,
)
from split_infer_ros.buffers.layout import strides_of


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


@pytest.mark.parametrize("dtype", [FLOAT32, bfloat16()], ids=str)
@pytest.mark.parametrize("strides", [(8, 1, 1, 1), (8, 1, 8, 8), (1, 2, 2, 2)])
def test_a_read_only_array_keeps_dtype_and_strides(dtype: DType, strides: tuple[int, ...]) -> None:
    array = as_array(as_tensor(noise((16,), dtype)).as_strided((2, 8, 1, 1), strides))
    array.flags.writeable = False
    for found in (as_array(as_tensor(array)), unlocked(array)):
        assert (found.dtype, found.shape, strides_of(found)) == (dtype, array.shape, strides)
        assert found.ctypes.data == array.ctypes.data
        assert np.array_equal(found, array)
    assert not array.flags.writeable


def test_a_writable_array_needs_no_unlocking() -> None:
    array = np.zeros(3)
    assert unlocked(array) is array


def test_the_view_keeps_the_arrays_memory() -> None:
    tensor = as_tensor(read_only(2))
    gc.collect()
    assert np.array_equal(tensor.numpy(), read_only(2))


def test_writes_to_a_writable_array_are_seen() -> None:
    array = np.zeros((2, 3), np.float32)
    tensor = as_tensor(array)
    array[1, 2] = 7
    assert torch.equal(tensor, torch.tensor([[0.0, 0, 0], [0, 0, 7]]))


Convert = Callable[[Any], Any]  # ``as_array`` or ``as_tensor``
DTYPES = [FLOAT32, FLOAT16, bfloat16(), BYTE, np.dtype(np.int64), np.dtype(np.bool_)]


def noise(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 2, shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 1, 2), (3, 2, 1, 0)], ids=str)
def test_strides_and_memory_are_the_same_both_ways(dtype: DType, order: tuple[int, ...]) -> None:
    array = noise((2, 3, 4, 5), dtype).transpose(order)[:, 1:]
    tensor = as_tensor(array)
    assert dtype_of(tensor) == dtype
    assert torch_dtype(dtype) == tensor.dtype
    assert tensor.shape == array.shape
    assert tensor.data_ptr() == array.ctypes.data
    assert strides_of(tensor) == strides_of(array)
    assert tensor.double().numpy().tolist() == array.astype(np.float64).tolist()
    back = as_array(tensor)
    assert back.dtype == dtype
    assert (back.ctypes.data, back.shape, back.strides) == (array.ctypes.data, array.shape, array.strides)
    assert np.array_equal(back, array)


@pytest.mark.parametrize("dtype", [FLOAT32, bfloat16()], ids=str)
@pytest.mark.parametrize("strides", [(8, 1, 1, 1), (8, 1, 8, 8), (1, 2, 2, 2), (7, 1, 3, 5)])
def test_strides_of_dimensions_of_length_1_are_kept_both_ways(dtype: DType, strides: tuple[int, ...]) -> None:
    """They say nothing of where a value lies, but oneDNN chooses kernels by them."""
    tensor = as_tensor(noise((32,), dtype)).as_strided((2, 8, 1, 1), strides)
    array = as_array(tensor)
    assert strides_of(array) == strides
    assert as_tensor(array).stride() == strides
    assert array.ctypes.data == tensor.data_ptr() == as_tensor(array).data_ptr()


def test_brain_floats_are_those_of_torch() -> None:
    values = torch.tensor([1.0, -2.5, 3e38, 1e-40, torch.inf, torch.nan, 1 / 3]).bfloat16()
    array = as_array(values)
    assert array.dtype.name == "bfloat16"
    assert torch.equal(torch.from_numpy(array.view(np.int16)), values.view(torch.int16))
    assert np.array_equal(array.astype(np.float32), values.float().numpy(), equal_nan=True)
    array[0] = 4
    assert values[0] == 4


def test_values_of_their_own_kind_stay_the_same_objects() -> None:
    array, tensor = np.zeros(3), torch.zeros(3)
    assert as_array(array) is array
    assert as_tensor(tensor) is tensor


def test_a_tensor_that_needs_gradients_is_viewed() -> None:
    tensor = torch.zeros(3, requires_grad=True)
    assert as_array(tensor).ctypes.data == tensor.data_ptr()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("to", [as_array, as_tensor])
@pytest.mark.parametrize("source", [as_array, as_tensor])
def test_values_are_copied_between_all_kinds(dtype: DType, to: Convert, source: Convert) -> None:
    target, given = noise((3, 4, 2), dtype), noise((2, 3, 4), dtype, seed=1).transpose(1, 2, 0)
    expected = given.copy()
    copy_into(to(target), source(given))
    assert np.array_equal(target, expected)
    given[...] = 0
    assert np.array_equal(target, expected)


@pytest.mark.parametrize("wide", [as_array, as_tensor])
@pytest.mark.parametrize("narrow", [as_array, as_tensor])
@pytest.mark.parametrize("dtype", [FLOAT16, bfloat16()], ids=str)
def test_copies_round_as_torch_does(dtype: DType, wide: Convert, narrow: Convert) -> None:
    values = np.random.default_rng(2).standard_normal(1000).astype(np.float32)
    rounded, widened = np.zeros(1000, dtype), np.zeros(1000, np.float32)
    copy_into(narrow(rounded), wide(values))
    assert np.array_equal(rounded, as_array(torch.from_numpy(values).to(torch_dtype(dtype))))
    copy_into(wide(widened), narrow(rounded))
    assert np.array_equal(widened, rounded.astype(np.float32))


@pytest.mark.parametrize("to", [as_array, as_tensor])
def test_a_read_only_array_is_copied(to: Convert) -> None:
    target = np.zeros((4, 5, 3), np.uint8)
    copy_into(to(target), read_only(2))
    assert np.array_equal(target, read_only(2))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5, 7), (2, 0, 3)], ids=str)
def test_an_empty_array_begins_where_vectors_do(dtype: DType, shape: tuple[int, ...]) -> None:
    arrays = [empty_array(shape, dtype) for _ in range(20)]
    for array in arrays:
        assert (array.shape, array.dtype) == (shape, dtype)
        assert array.ctypes.data % ALIGNMENT == 0 or not array.size
        assert array.flags.c_contiguous
        assert array.flags.writeable
        array[...] = 1
    assert not any(np.shares_memory(arrays[0], other) for other in arrays[1:])


@pytest.mark.parametrize("kind", [as_array, as_tensor])
@pytest.mark.parametrize("dtype", [FLOAT16, bfloat16()], ids=str)
def test_floats_of_16_bits_are_widened_on_the_host(dtype: DType, kind: Convert) -> None:
    values = np.random.default_rng(3).standard_normal((2, 3)).astype(dtype)
    found = to_host(kind(values))
    assert found.dtype == FLOAT32
    assert np.array_equal(found, values.astype(np.float32))


@pytest.mark.parametrize("kind", [as_array, as_tensor])
@pytest.mark.parametrize("dtype", [FLOAT32, np.dtype(np.float64), np.dtype(np.int16), BYTE], ids=str)
def test_other_values_of_the_host_are_not_copied(dtype: DType, kind: Convert) -> None:
    values = noise((2, 3), dtype)
    found = to_host(kind(values))
    assert found.dtype == dtype
    assert found.ctypes.data == values.ctypes.data


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_dtype_has_a_name(dtype: DType) -> None:
    assert dtype_named(dtype.name) == dtype
    assert is_floating(dtype) == (dtype in (FLOAT32, FLOAT16, bfloat16()))


def test_other_names_are_no_dtypes() -> None:
    with pytest.raises(TypeError):
        dtype_named("float7")
