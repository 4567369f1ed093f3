"""Files of drivers tell whether a GPU is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from split_infer_ros.runtime import gpu_files
from split_infer_ros.runtime.gpu_files import has_nvidia_driver


def test_each_file_of_a_driver_of_nvidia_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = tuple(tmp_path / path.name for path in gpu_files.NVIDIA)
    monkeypatch.setattr(gpu_files, "NVIDIA", files)
    assert not has_nvidia_driver()
    for path in files:
        path.touch()
        assert has_nvidia_driver()
        path.unlink()
