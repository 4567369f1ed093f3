"""The process that inspects model files, as the process that asks it sees it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.child_process import ChildProcess
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.sandbox.early_inspector import take_process
from split_infer_ros.split.sandbox.inspection_imports import modules_for, preload
from split_infer_ros.split.sandbox.inspection_limits import InspectionLimits

MAX_START_S, MAX_EXIT_S = 120.0, 2.0


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
            self._process = None

    @property
    def pid(self) -> int | None:
        """The id of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    def ask(self, spec: ModelSpec, limits: InspectionLimits) -> dict[str, Any]:
        """Has a model's files inspected and returns what was found.

        Returns:
            After a success: ``files``, which were read beside the model, and ``reading``, how an ONNX file's outputs
            are read. Otherwise: ``error`` with its ``kind``, or ``died`` (how the process ended), or ``late``.
            ``peak_bytes`` is the most memory that the inspection took, with its imports.

        Raises:
            ConfigurationError: the process cannot be started.
        """
        process, is_new = self._process, False
        if process is None or not process.is_running:
            self.__exit__()
            process, is_new = _start(), True
            self._process = process
        plain = _plain(spec)
        try:
            process.send({"spec": plain, "memory_bytes": limits.memory_bytes, "seconds": limits.seconds})
            preload(modules_for(plain))  # this process needs them next, and has nothing else to do
            if is_new:
                self._wait_for_start(process)
            answer = process.next_answer(limits.seconds + MAX_START_S)  # the process keeps to the limit by itself
        except BaseException:  # Ctrl-C too: the next request would get this answer
            self.__exit__()
            raise
        if answer is None:
            self._process = None
            answer = {"died": process.end(MAX_EXIT_S), "peak_bytes": 0}
        return answer

    def _wait_for_start(self, process: ChildProcess) -> None:
        """Waits until the process is ready.

        Raises:
            ConfigurationError: the process does not become ready.
        """
        try:
            answer = process.next_answer(MAX_START_S)
        except TimeoutError:
            raise ConfigurationError(
                f"The process that inspects model files was not ready within {MAX_START_S:g} s; try again."
            ) from None
        if answer is None:
            self._process = None
            raise ConfigurationError(
                f"The process that inspects model files ended with {process.end(MAX_EXIT_S)} before it saw a file."
            )
        if "error" in answer:
            raise ConfigurationError(f"The process that inspects model files cannot start ({answer['error']}).")


def _start() -> ChildProcess:
    try:
        return take_process()
    except OSError as error:
        raise ConfigurationError(f"No process can be started that inspects model files ({error}).") from error


def _plain(spec: ModelSpec) -> dict[str, Any]:
    fields = {name: getattr(spec, name) for name in ("name", "weights", "allow_user_code", "on_torch")}
    return fields | asdict(spec.onnx_options) | {"engine": spec.execution_config.engine.value}
