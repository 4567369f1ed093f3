"""Starts the process that inspects model files, sends requests to it, and returns its answers."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.child_process import ChildError, ChildProcess
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.sandbox.early_inspector import take_process
from split_infer_ros.split.sandbox.inspection_imports import modules_for, preload
from split_infer_ros.split.sandbox.inspection_limits import InspectionLimits

MAX_OVERTIME_S = 120.0  # for the process's own work; it ends an inspection that exceeds its limit by itself


class Inspector:
    """Has files inspected by a process, one after the other. The process starts with the first file.

    An ``Inspector`` is a context manager, which ends the process.
    """

    def __init__(self) -> None:
        self._process: ChildProcess | None = None

    def __enter__(self) -> Inspector:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._process.end()

    @property
    def pid(self) -> int | None:
        """The id of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    def ask(self, spec: ModelSpec, limits: InspectionLimits) -> dict[str, Any]:
        """Has a model's files inspected and returns what was found.

        Returns:
            After a success: ``files``, which were read beside the model, and ``reading``, how an ONNX file's outputs
            are read. Otherwise: ``error`` with its ``kind`` and ``is_shortage`` (whether memory ran out), or ``died``
            (how the process ended), or ``late`` (it took too long). ``peak_bytes`` is the most memory that the
            inspection took, with its imports. It is missing if the whole process ended.

        Raises:
            ConfigurationError: the process cannot be started.
        """
        plain = _plain(spec)
        request = {"spec": plain, "memory_bytes": limits.memory_bytes, "seconds": limits.seconds}
        try:
            if self._process is None:
                self._process = take_process()
            self._process.start()
            preload_own = partial(preload, modules_for(plain))  # this process needs them next
            return self._process.ask(request, limits.seconds + MAX_OVERTIME_S, preload_own)
        except ChildError as error:
            raise ConfigurationError(f"Model files cannot be inspected: {error}.") from error


def _plain(spec: ModelSpec) -> dict[str, Any]:
    fields = {name: getattr(spec, name) for name in ("name", "weights", "allow_user_code", "on_torch")}
    return fields | asdict(spec.onnx_options) | {"engine": spec.execution_config.engine.value}
