"""What needs a GPU; skipped by name on machines without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from real_gpu import SANITIZED  # noqa: E402
from stream_sanitizer import check_every_thread  # noqa: E402

HERE = Path(__file__).parent
SECONDS_PER_TEST = 100  # kernels are compiled and the machine is calibrated where nothing was measured before


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if HERE not in item.path.parents:
            continue
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SECONDS_PER_TEST))


@pytest.fixture(scope="session")
def measurements(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what these tests measure, which so leaves the user's own database alone."""
    return tmp_path_factory.mktemp("measurements")


@pytest.fixture(autouse=True)
def exact_float32(measurements: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32 is not rounded to TF32, so that results of one network differ by the order of sums alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(measurements))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture(scope="session", autouse=True)
def sanitized_threads() -> Iterator[None]:
    """Under ``TORCH_CUDA_SANITIZER=1``, the operations of every thread are checked."""
    with pytest.MonkeyPatch.context() as patch:
        if SANITIZED:
            check_every_thread(patch)
        yield
