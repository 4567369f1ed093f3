from __future__ import annotations

from collections.abc import Iterator

import pytest
from one_thread import one_thread


@pytest.fixture(autouse=True, scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder for these tests, where loaded ONNX models leave verdicts on their batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="module")
def compute_with_one_thread() -> Iterator[None]:
    with one_thread():
        yield
