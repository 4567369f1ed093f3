"""Frames go through a file in memory: any shapes and dtypes, and more bytes than before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as drawn

from split_infer_ros.tasks.frame_file import FrameFile

ARRAYS = drawn.arrays(
    st.sampled_from([np.uint8, np.float32]), drawn.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=40)
)


@given(st.lists(st.lists(ARRAYS, max_size=4), min_size=1, max_size=4))
def test_what_one_process_writes_the_other_reads(batches: list[list[npt.NDArray[np.generic]]]) -> None:
    ours = FrameFile.create()
    theirs = FrameFile.open(ours.path)
    ours.hide()
    try:
        for arrays in batches:  # of other sizes than the ones before
            read = theirs.read(ours.write(arrays))
            assert [array.dtype for array in read] == [array.dtype for array in arrays]
            for found, array in zip(read, arrays, strict=True):
                np.testing.assert_array_equal(found, array)  # equal bits: nothing is computed
    finally:
        theirs.close()
        ours.close()


def test_nothing_is_left_in_the_folder() -> None:
    frames = FrameFile.create()
    path = Path(frames.path)
    assert path.exists()
    frames.hide()
    frames.hide()
    assert not path.exists()
    frames.write([np.ones(10)])
    frames.close()
