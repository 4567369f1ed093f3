from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.vision_ops import segmented_argsort as module
from split_infer_ros.vision_ops.segmented_argsort import segmented_argsort

FLOATS = {np.float16: 16, np.float32: 32, np.float64: 64}
LENGTHS = st.lists(st.integers(0, 20), max_size=8) | st.tuples(st.integers(0, 20), st.integers(1, 5)).map(
    lambda equal: [equal[0]] * equal[1]
)
INTEGERS = [np.bool_, np.uint8, np.int8, np.int16, np.int32, np.int64]


def expected(values: np.ndarray, lengths: list[int], descending: bool) -> list[int]:
    """Each segment by numpy's stable argsort."""
    if values.dtype.kind == "f":
        keys = -values if descending else values
    else:
        keys = ~values.astype(np.int64) if descending else values
    ends = np.cumsum(lengths, dtype=np.int64)
    order = [keys[end - n : end].argsort(kind="stable") + end - n for end, n in zip(ends, lengths, strict=True)]
    return np.concatenate([np.zeros(0, np.int64), *order]).tolist()


@settings(max_examples=200)
@given(data=st.data(), lengths=LENGTHS, descending=st.booleans(), methods=st.tuples(*[st.booleans()] * 3))
def test_each_segment_is_sorted_like_numpy(
    data: st.DataObject, lengths: list[int], descending: bool, methods: tuple[bool, bool, bool]
) -> None:
    lexsort, rows, keys = methods
    kind = data.draw(st.sampled_from([*FLOATS, *INTEGERS]))
    elements = st.floats(width=FLOATS[kind], allow_subnormal=False) if kind in FLOATS else None
    values = data.draw(arrays(kind, sum(lengths), elements=elements))
    offsets = torch.tensor([0, *np.cumsum(lengths, dtype=np.int64)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_LEXSORT", module.MAX_LEXSORT if lexsort else 0)
        patch.setattr(module, "MAX_ROWS_VALUES", module.MAX_ROWS_VALUES if rows else 0)
        patch.setattr(module, "MAX_ROW_LENGTH", module.MAX_ROW_LENGTH if rows else 0)
        patch.setattr(module, "KEY_BITS", module.KEY_BITS if keys else 0)
        found = segmented_argsort(torch.from_numpy(values), offsets, descending=descending)
    assert found.dtype == torch.int64
    assert found.tolist() == expected(values, lengths, descending)


@pytest.mark.parametrize("levels", [1, 7, 10**6])
@pytest.mark.parametrize("descending", [False, True])
def test_a_hundred_thousand_values_are_sorted(levels: int, descending: bool) -> None:
    random = np.random.default_rng(levels)
    values = (random.integers(-levels, levels, 100_000) / 8).astype(np.float32)
    values[random.random(100_000) < 0.1] = random.choice([np.nan, np.inf, -np.inf, -0.0])
    borders = np.sort(random.integers(0, 100_000, 500))
    offsets = np.concatenate([[0], borders, [100_000]])
    found = segmented_argsort(torch.from_numpy(values), torch.from_numpy(offsets), descending=descending)
    assert found.tolist() == expected(values, np.diff(offsets).tolist(), descending)


@pytest.mark.parametrize(
    ("values", "offsets", "message"),
    [
        (torch.zeros(3), [0, 2], "offsets lead from 0 to 2; they must ascend from 0 to 3"),
        (torch.zeros(3), [1, 3], "lead from 1 to 3"),
        (torch.zeros(3), [0, 5, 1, 3], "they must ascend"),
        (torch.zeros(3), [], r"offsets \(0,\)"),
        (torch.zeros(3), [0.0, 3.0], "torch.float32 do not fit"),
        (torch.zeros(1, 3), [0, 3], r"values \(1, 3\)"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(values: torch.Tensor, offsets: list[float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        segmented_argsort(values, torch.tensor(offsets))
