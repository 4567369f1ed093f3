"""Runs Triton kernels without a GPU, in a process where Triton interprets them.

Triton must be told so before it is imported, so a process of its own is needed.
"""

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
    """Calls a function of a module in ``split_infer_ros.vision_ops.kernels``.

    Only positional arguments can be tensors. The result is a tensor, or a tuple of tensors.
    """

    def __call__(self, module: str, function: str, *arguments: object, **keywords: object) -> Any: ...


@contextmanager
def interpreter() -> Iterator[Call]:
    """Yields a function that calls functions of kernels in the process that interprets them."""
    with (
        mock.patch.dict(os.environ, {"TRITON_INTERPRET": "1"}),
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process,
    ):

        def call(module: str, function: str, *arguments: object, **keywords: object) -> Any:
            plain = [value.numpy() if isinstance(value, torch.Tensor) else value for value in arguments]
            found = process.submit(_call_there, module, function, plain, keywords).result(LONG_S)
            return tuple(map(torch.from_numpy, found)) if isinstance(found, tuple) else torch.from_numpy(found)

        yield call


def _call_there(module: str, function: str, plain: list[Any], keywords: dict[str, Any]) -> Any:
    """Calls the function in the process that interprets; arrays become tensors, and tensors of the result arrays."""
    called = getattr(importlib.import_module(f"split_infer_ros.vision_ops.kernels.{module}"), function)
    arguments = [torch.from_numpy(value) if hasattr(value, "dtype") else value for value in plain]
    found = called(*arguments, **keywords)
    return tuple(each.numpy() for each in found) if isinstance(found, tuple) else found.numpy()
