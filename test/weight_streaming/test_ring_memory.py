"""Memory that a disk writes to."""

from __future__ import annotations

import pytest
import torch

from split_infer_ros.weight_streaming.ring_memory import HUGE, page_aligned


@pytest.mark.parametrize("nbytes", [0, 1, HUGE - 1, HUGE, 2 * HUGE + 5])
def test_memory_begins_with_a_huge_page_and_is_as_long_as_asked_for(nbytes: int) -> None:
    memory = page_aligned(nbytes)
    assert (memory.dtype, len(memory)) == (torch.uint8, nbytes)
    assert not memory.data_ptr() % HUGE
    memory.fill_(7)
    assert memory.sum() == 7 * nbytes
