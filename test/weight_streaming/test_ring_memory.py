"""The memory that a disk writes to."""

from __future__ import annotations

import pytest
import torch

from split_infer_ros.weight_streaming.ring_memory import HUGE_PAGE, page_aligned


@pytest.mark.parametrize("nbytes", [0, 1, HUGE_PAGE - 1, HUGE_PAGE, 2 * HUGE_PAGE + 5])
def test_memory_starts_at_a_huge_page_and_has_its_size(nbytes: int) -> None:
    memory = page_aligned(nbytes)
    assert (memory.dtype, len(memory)) == (torch.uint8, nbytes)
    assert not memory.data_ptr() % HUGE_PAGE
    memory.fill_(7)
    assert memory.sum() == 7 * nbytes
