"""Keeps models that OpenVINO compiled in the user's cache. A later start reads them and compiles nothing."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from split_infer_ros.engines.engine import CPU, Engine, import_for
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.runtime.cache import cache_path, mark_used, warn_if_not_kept, warn_once
from split_infer_ros.runtime.cache_pruning import write_cached
from split_infer_ros.runtime.checked_files import HEADER_BYTES, header_of, read_checked
from split_infer_ros.telemetry.machine import cpu_extensions, cpu_name, onednn_limit

if TYPE_CHECKING:
    from split_infer_ros.images.pixel_input import PixelInput

FORMAT = 2  # raise it if the file's format changes, or how graphs are prepared before compiling
FOLDER = "blobs"
PRIVATE = 0o700
DEVICE_FACTS = ("FULL_DEVICE_NAME", "DEVICE_ARCHITECTURE")


class CompiledBlob:
    """The cache's file for one model that OpenVINO compiles for one form of its inputs. The file need not exist.

    If anything is wrong with the file or its folder, the log gets a warning and the model is compiled. Only models for
    the CPU are kept. Another device's export depends on a driver, and OpenVINO does not tell the driver's version.

    Args:
        core: OpenVINO's core.
        device: the device for which the model is compiled, in OpenVINO's spelling.
        properties: the properties for compiling. They name the precision, the threads and the streams.
        graph: the graph to compile.
        shapes: shapes of the model's inputs; None if the model takes all batch sizes.
        pixels: the form of the images that the model normalises; None if the model takes the graph's inputs.

    Attributes:
        are_kept: whether compiled models are written. False in a process with models that no later process needs.
    """

    are_kept: ClassVar[bool] = True

    def __init__(
        self,
        core: Any,
        device: str,
        properties: Mapping[str, Any],
        graph: OnnxGraph,
        shapes: Iterable[Sequence[int]] | None,
        pixels: PixelInput | None,
    ) -> None:
        self._core, self._device, self._properties, self._name = core, device, dict(properties), graph.name
        self._runtime: Any = import_for(Engine.OPENVINO, "openvino")
        form = None if shapes is None else [list(map(int, shape)) for shape in shapes]
        # The digest covers weights in a separate file too: the graph names that file, and its name depends on them.
        self._facts = [FORMAT, graph.digest, form, repr(pixels), {key: str(value) for key, value in properties.items()}]

    @property
    def path(self) -> Path:
        """The file's path. Its name depends on all that affects the content, including OpenVINO and the processor."""
        device = [str(self._core.get_property(self._device, name)) for name in DEVICE_FACTS]
        machine = [cpu_name(), sorted(cpu_extensions()), onednn_limit()]
        facts = json.dumps([*self._facts, self._runtime.get_version(), device, machine], sort_keys=True)
        return cache_path(FOLDER, facts, ".blob")

    def load(self) -> Any:
        """Returns the compiled model from the file; None if there is no usable file."""
        if self._device != CPU:
            return None
        path = self.path
        try:
            _check_private(path.parent)
            blob = self._read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            warn_once(path.parent, f"{path} cannot be read ({error}), so {self._name} is compiled.")
            return None
        if blob is None:
            warn_once(path, f"{path} is not as it was written, so {self._name} is compiled again.")
            return None
        try:
            compiled = self._core.import_model(blob, self._device, self._properties)
        except Exception as error:  # OpenVINO raises RuntimeError and others
            warn_once(path, f"OpenVINO does not take {path}, so {self._name} is compiled again: {error}")
            return None
        mark_used(path)
        return compiled

    def keep(self, compiled: Any) -> None:
        """Writes the compiled model to the file. Other processes may do so at the same time.

        Nothing is written for another device than the CPU, or if ``are_kept`` is false.
        """
        if self._device != CPU or not self.are_kept:
            return
        path = self.path
        # OpenVINO raises RuntimeError and others.
        with warn_if_not_kept(path, f"{self._name} is compiled at each start", Exception):
            path.parent.parent.mkdir(parents=True, exist_ok=True)
            path.parent.mkdir(mode=PRIVATE, exist_ok=True)
            _check_private(path.parent)
            write_cached(path, _exported(compiled))

    def _read(self, path: Path) -> Any:
        """Returns the exported model in memory that OpenVINO owns; None if the file has changed since it was written.

        OpenVINO leaves the weights in that memory, and does not say when it no longer needs them.

        Raises:
            OSError: the file cannot be read.
        """
        made: list[Any] = []

        def make_room(num_bytes: int) -> Any:
            made.append(self._runtime.Tensor(self._runtime.Type.u8, [num_bytes]))
            return made[0].data

        return None if read_checked(path, make_room) is None else made[0]


def _exported(compiled: Any) -> Any:
    """Returns the file's content for a compiled model. Memory holds it only once."""
    content = io.BytesIO()
    content.write(bytes(HEADER_BYTES))
    compiled.export_model(content)
    view = content.getbuffer()
    view[:HEADER_BYTES] = header_of(view[HEADER_BYTES:])
    return view


def _check_private(folder: Path) -> None:
    """Checks that no other user can have written into a folder.

    Raises:
        OSError: another user can have done so, or there is no such folder.
    """
    facts = folder.stat()
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o777 != PRIVATE:
        raise PermissionError(f"{folder} must belong to this user, and have mode {PRIVATE:o}")
