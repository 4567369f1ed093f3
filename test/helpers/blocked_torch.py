"""Code that another Python process runs first, so that torch cannot be imported there."""

from __future__ import annotations

from pathlib import Path

import split_infer_ros

PACKAGE = Path(split_infer_ros.__file__).parent
BLOCK_TORCH = """
import importlib, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision"):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, NoTorch())
"""
