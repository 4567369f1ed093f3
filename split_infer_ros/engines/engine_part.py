"""A part of a network that ONNX Runtime or OpenVINO executes, in the caller's memory."""

from __future__ import annotations

import itertools
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from split_infer_ros.buffers.host_arrays import DType, Values, as_array, as_tensor, dtype_of, empty_array
from split_infer_ros.buffers.layout import strides_of
from split_infer_ros.errors import SplitInferError
from split_infer_ros.images.pixel_input import PixelInput
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.torch_graphs.module_state import is_module

MAX_THREAD_COUNTS = 3  # a part is made for at most so many thread counts; each has its own weights

Made = TypeVar("Made")

_log = logging.getLogger(__name__)


class EnginePart(ABC):
    """An ONNX graph that an engine executes. It reads inputs where they lie, and can write results into given memory.

    The part reads contiguous inputs without a copy. It converts other inputs first, counts them in ``conversions``, and
    logs the first conversion. Several threads may use a part at once. On the host, it computes with arrays. A caller
    that passes tensors gets tensors, which are views of arrays.

    Args:
        graph: the graph to execute.

    Attributes:
        graph: the argument.
        inputs: the tensors that a call takes, in order.
        conversions: how many inputs were converted.
        can_run_into: whether the shapes of all results are known before a run. Results can then be written into given
            memory.
    """

    def __init__(self, graph: OnnxGraph) -> None:
        self.graph = graph
        self.inputs = graph.inputs
        self.conversions = 0
        self._is_bound = graph.has_known_shape
        self.can_run_into = all(self._is_bound)

    def __call__(self, *values: Values) -> tuple[Values, ...]:
        """Maps inputs (n, ...) for n images to results in new memory, to which later runs do not write.

        Raises:
            SplitInferError: an input has another dtype than the graph's input.
        """
        prepared = self._prepared(values)
        outputs = [
            self._empty((len(prepared[0]), *map(_known, each.shape[1:])), each.dtype) if is_bound else None
            for each, is_bound in zip(self.graph.outputs, self._is_bound, strict=True)
        ]
        found = self.run_prepared(outputs, prepared)
        return found if isinstance(values[0], np.ndarray) else tuple(map(as_tensor, found))

    def run_into(self, outputs: Sequence[Values], *values: Values) -> None:
        """Runs the part and writes its results into the memory of ``outputs``; see ``can_run_into``.

        Args:
            outputs: contiguous memory of the results' shapes and dtypes, on the inputs' device.
            values: the inputs, (n, ...) for n images.

        Raises:
            SplitInferError: one of ``outputs`` has another shape or dtype than the result, or is not contiguous. Or an
                input has another dtype than the graph's input.
        """
        prepared, places = self._prepared(values), [self._taken(place) for place in outputs]
        for place, expected in zip(places, self.graph.outputs, strict=True):
            shape = (len(prepared[0]), *expected.shape[1:])
            if tuple(place.shape) != shape or _dtype(place) != expected.dtype or not _is_contiguous(place):
                raise SplitInferError(
                    f"{self.graph.name} gives {expected}, which cannot be written into memory of shape "
                    f"{tuple(place.shape)}, strides {strides_of(place)} and {_dtype(place).name}."
                )
        self.run_prepared(places, prepared)

    def for_pixels(self, pixels: PixelInput) -> EnginePart | None:
        """Returns a part that normalises its images (n, h, w, 3) itself; None if the engine gains nothing by that.

        Later calls with equal ``pixels`` reuse what the returned part has compiled.

        Args:
            pixels: the form of the images: their dtype, mean and standard deviation.
        """
        return None

    @abstractmethod
    def run_prepared(self, outputs: Sequence[Values | None], values: Sequence[Values]) -> tuple[Values, ...]:
        """Runs the part on inputs that need no conversion. ``__call__`` and ``run_into`` end here.

        A part that wraps another part calls this method of the other part.

        Args:
            outputs: memory for the results; None for a result of a shape that is not known before the run.
            values: contiguous inputs; arrays on the host.

        Returns:
            The results: the given outputs, with new values in place of None.
        """

    def _taken(self, values: Values) -> Values:
        """Returns a view of the values in the form that this part takes. For a part on the host, that is an array."""
        return as_array(values)

    def _empty(self, shape: tuple[int, ...], dtype: DType) -> Values:
        """Allocates memory for a result."""
        return empty_array(shape, dtype)

    def _prepared(self, values: Sequence[Values]) -> tuple[Values, ...]:
        """Checks the dtypes of the inputs, and returns the inputs as contiguous values."""
        prepared = []
        for each, expected in zip(map(self._taken, values), self.inputs, strict=True):
            if _dtype(each) != expected.dtype:
                raise SplitInferError(f"{self.graph.name} takes {expected}, and was given {_dtype(each).name}.")
            if not _is_contiguous(each):
                self._note_conversion(each)
                each = np.ascontiguousarray(each) if isinstance(each, np.ndarray) else each.contiguous()
            prepared.append(each)
        return tuple(prepared)

    def _note_conversion(self, values: Values) -> None:
        if not self.conversions:
            _log.info(
                "%s converts %d bytes of each batch, which come in another layout than it reads. If backbone and head "
                "run on the same engine, nothing is converted.",
                self.graph.name,
                values.nbytes,
            )
        self.conversions += 1


def has_engine_part(partition: Any) -> bool:
    """Returns whether a partition is an ``EnginePart``, or a torch module that holds one."""
    if not is_module(partition):
        return isinstance(partition, EnginePart)
    held = (value for module in partition.modules() for value in vars(module).values())
    lists = (value if isinstance(value, tuple) else (value,) for value in held)
    return any(isinstance(each, EnginePart) for each in itertools.chain.from_iterable(lists))


def _dtype(values: Values) -> DType:
    return values.dtype if isinstance(values, np.ndarray) else dtype_of(values)


def _is_contiguous(values: Values) -> bool:
    return values.flags.c_contiguous if isinstance(values, np.ndarray) else values.is_contiguous()


class PerThreadCount(Generic[Made]):
    """Keeps one object for each number of threads, at most ``MAX_THREAD_COUNTS`` objects. Threads may share it.

    Args:
        make: makes the object for a number of threads.
    """

    def __init__(self, make: Callable[[int], Made]) -> None:
        self._make = make
        self._made: dict[int, Made] = {}
        self._found: dict[int, Made] = {}  # what ``get`` returned
        self._making = threading.Lock()

    def get(self, num_threads: int) -> Made:
        """Returns the object for a number of threads. Only making an object takes a lock, not finding it.

        Once ``MAX_THREAD_COUNTS`` objects are kept, returns the object for the nearest smaller number of threads
        instead. If all numbers are larger, returns the object for the smallest number.
        """
        if num_threads in self._found:
            return self._found[num_threads]
        with self._making:
            if num_threads not in self._made and len(self._made) < MAX_THREAD_COUNTS:
                self._made[num_threads] = self._make(num_threads)
            fitting = [number for number in self._made if number <= num_threads]
            found = self._found[num_threads] = self._made[max(fitting) if fitting else min(self._made)]
            return found


def _known(length: int | None) -> int:
    assert length is not None
    return length
