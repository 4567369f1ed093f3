"""Finds files that lie beside the checkout and belong to no commit. A test that needs a missing file is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest


def shared_file(name: str) -> Path:
    """Returns ``shared/NAME`` beside the checkout or beside a folder above. Skips the test if the file is missing."""
    found = [path for folder in Path(__file__).resolve().parents[3:] if (path := folder / "shared" / name).is_file()]
    if not found:
        pytest.skip(f"../shared/{name} is not here")
    return found[0]
