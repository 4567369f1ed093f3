from __future__ import annotations

from collections.abc import Iterator

import pytest
from one_thread import one_thread


@pytest.fixture(autouse=True, scope="module")
def compute_with_one_thread() -> Iterator[None]:
    with one_thread():
        yield
