"""The results of a part of a network. An operator at the end writes a result into given memory, or it is copied there.

In this module, values are what the part has computed before its last operators run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from split_infer_ros.buffers.layout import Strides, batched_strides, dense_strides, is_dense
from split_infer_ros.engines.out_forms import OutForm

Values = Sequence[Any]  # inputs of the last operators: tensors, and numbers that views need

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class StartedResult:
    """A result that is computed except for its last operator.

    Attributes:
        strides: strides of the memory that ``write`` takes.
        write: writes the result into memory of these strides.
    """

    strides: Strides
    write: Callable[[Tensor], None]


@dataclass(frozen=True, slots=True)
class _Placement:
    """How a result lies in memory.

    Attributes:
        shape, strides: shape and strides of the operator's result.
        viewed_strides: strides of the part's result, which is a view of the operator's result.
    """

    shape: torch.Size
    strides: Strides
    viewed_strides: Strides


@dataclass(frozen=True, slots=True, eq=False)
class CopiedResult:
    """A result that no operator can write into given memory, so it is copied there.

    Attributes:
        name: the value's name in the part's graph.
        index: the result's index among the values.
    """

    name: str
    index: int

    def compute(self, values: Values) -> Tensor:
        """Returns the result, which is one of the values."""
        result: Tensor = values[self.index]
        return result

    def start(self, values: Values, batched: bool) -> StartedResult:
        """Returns the result, ready to be copied.

        Args:
            values: what the part has computed so far.
            batched: whether one image must follow the other in memory.
        """
        return _copied(self.compute(values), batched)


@dataclass(slots=True, eq=False)
class WrittenResult:
    """A result that its last operator writes into given memory.

    The operator's usual form and the form that writes are compared once for each combination of input shapes, strides
    and dtypes. If a single bit differs, results of this combination are copied.

    Attributes:
        name: the value's name in the part's graph.
        call: the node that calls the operator.
        operator: maps the values that ``call`` takes to the operator's result.
        form: the operator's form that writes into given memory.
        views: maps the operator's result, and the values of ``view_inputs``, to the part's result, without a copy.
        view_inputs: the nodes with values that the views take besides the operator's result.
        index: for each node that operator and views take, the index of its value among the values.
    """

    name: str
    call: fx.Node
    operator: fx.GraphModule
    form: OutForm
    views: fx.GraphModule
    view_inputs: Sequence[fx.Node]
    index: Mapping[fx.Node, int]
    _placements: dict[object, _Placement | None] = field(default_factory=dict)

    def compute(self, values: Values) -> Tensor:
        """Computes the result from the values, in new memory."""
        taken = self._taken(values)
        return self._viewed(self.operator(*self._arguments(taken)), taken)

    def start(self, values: Values, batched: bool) -> StartedResult:
        """Returns the result, ready to be written by its last operator, or to be copied.

        Args:
            values: what the part has computed before its last operators.
            batched: whether one image must follow the other in memory.
        """
        taken = self._taken(values)
        placement = self._placement(taken, batched)
        if placement is None:
            return _copied(self.compute(values), batched)

        def write(into: Tensor) -> None:
            self._run_into(into.as_strided(placement.shape, placement.strides), taken)

        return StartedResult(placement.viewed_strides, write)

    def _placement(self, taken: Mapping[fx.Node, Any], batched: bool) -> _Placement | None:
        """Returns how the result for these values lies in memory; None if the operator cannot write it there."""
        kind = (
            batched,
            *((each.shape, each.stride(), each.dtype) if isinstance(each, Tensor) else each for each in taken.values()),
        )
        if kind not in self._placements:
            self._placements[kind] = self._try(taken, batched)
            if self._placements[kind] is None:
                _log.info("%s is copied, because its last operator cannot write it into given memory.", self.name)
        return self._placements[kind]

    def _try(self, taken: Mapping[fx.Node, Any], batched: bool) -> _Placement | None:
        probes = {node: _probe(each) if isinstance(each, Tensor) else each for node, each in taken.items()}
        # The usual form may change its inputs in place, so it gets copies.
        usual = self.operator(*(each.clone() if isinstance(each, Tensor) else each for each in self._arguments(probes)))
        result = self._viewed(usual, probes)
        if result.data_ptr() != usual.data_ptr() or not is_dense(result.shape, result.stride()):
            return None
        placement = _Placement(usual.shape, usual.stride(), result.stride())
        if batched and result.stride() != batched_strides(result):
            if result.shape != usual.shape or result.stride() != usual.stride():  # views would move the result
                return None
            placement = _Placement(usual.shape, batched_strides(usual), batched_strides(usual))
        written = torch.empty_strided(usual.shape, placement.strides, dtype=usual.dtype, device=usual.device)
        try:
            self._run_into(written, probes)
        except (RuntimeError, TypeError) as error:  # the form does not take these arguments
            _log.debug("%s cannot be written into given memory: %s", self.name, error)
            return None
        return placement if torch.equal(written, usual) else None

    def _run_into(self, out: Tensor, taken: Mapping[fx.Node, Any]) -> None:
        args = fx.node.map_arg(self.call.args, taken.__getitem__)
        self.form(*args, **fx.node.map_arg(self.call.kwargs, taken.__getitem__), out=out)

    def _taken(self, values: Values) -> dict[fx.Node, Any]:
        return {node: values[index] for node, index in self.index.items()}

    def _arguments(self, taken: Mapping[fx.Node, Any]) -> list[Any]:
        return [taken[node] for node in self.call.all_input_nodes]

    def _viewed(self, result: Tensor, taken: Mapping[fx.Node, Any]) -> Tensor:
        viewed: Tensor = self.views(result, *(taken[node] for node in self.view_inputs))
        return viewed


Result = CopiedResult | WrittenResult


def _copied(result: Tensor, batched: bool) -> StartedResult:
    def copy(into: Tensor) -> None:
        into.copy_(result, non_blocking=True)

    return StartedResult(batched_strides(result) if batched else dense_strides(result), copy)


def _probe(tensor: Tensor) -> Tensor:
    """Returns a tensor of the same kind with varied elements, which show if operations run in another order."""
    probe = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    if not tensor.is_floating_point():
        return probe.copy_(tensor)
    return probe.copy_(torch.linspace(-3.0, 3.0, tensor.numel(), device=tensor.device).view(tensor.shape))
