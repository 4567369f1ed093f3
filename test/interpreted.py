"""Triton kernels without a GPU: in a process of their own, where Triton is told to interpret before it is imported."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol
from unittest import mock

import torch

LONG_S = 100.0


class Call(Protocol):
    """A function of a module of kernels, and what it is given."""

    def __call__(self, module: str, function: str, *given: object) -> torch.Tensor: ...


@contextmanager
def interpreter() -> Iterator[Call]:
    """Calls functions of ``split_infer_ros.vision_ops.kernels`` in that process."""
    with (
        mock.patch.dict(os.environ, {"TRITON_INTERPRET": "1"}),
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process,
    ):

        def call(module: str, function: str, *given: object) -> torch.Tensor:
            plain = [value.numpy() if isinstance(value, torch.Tensor) else value for value in given]
            return torch.from_numpy(process.submit(_there, module, function, plain).result(LONG_S))

        yield call


def _there(module: str, function: str, given: list[Any]) -> Any:
    found = getattr(importlib.import_module(f"split_infer_ros.vision_ops.kernels.{module}"), function)
    return found(*(torch.from_numpy(value) if hasattr(value, "dtype") else value for value in given)).numpy()
