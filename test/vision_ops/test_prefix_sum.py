from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from split_infer_ros.vision_ops.prefix_sum import prefix_sum


@settings(max_examples=100)
@given(data=st.data(), shape=array_shapes(max_dims=3, min_side=0, max_side=30))
def test_rows_are_summed_like_numpy(data: st.DataObject, shape: tuple[int, ...]) -> None:
    kind = data.draw(st.sampled_from([np.bool_, np.uint8, np.int32, np.int64, np.float32, np.float64]))
    elements = st.floats(-1e3, 1e3, width=32) if np.dtype(kind).kind == "f" else None
    values = data.draw(arrays(kind, shape, elements=elements))
    found = prefix_sum(torch.from_numpy(values)).numpy()
    if np.dtype(kind).kind == "f":
        assert found.dtype == kind
        np.testing.assert_allclose(found, np.cumsum(values.astype(np.float64), -1), 1e-4, 1e-2)
    else:
        np.testing.assert_array_equal(found, np.cumsum(values.astype(np.int64), -1))
        assert found.dtype == np.int64


def test_a_number_is_its_own_sum() -> None:
    assert prefix_sum(torch.tensor(7)).item() == 7
