from __future__ import annotations

from pathlib import Path

import pytest

from split_infer_ros.vision_ops import implementations


@pytest.fixture(autouse=True)
def plain_operators(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Switches Triton off, whose kernels cannot be simulated, and keeps the user's own database unchanged."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(implementations, "_choose", lambda *_: implementations.ImplementationChoice.PLAIN)
    monkeypatch.setattr(implementations, "_cache", {})
