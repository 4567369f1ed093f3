"""A part of a network that writes its results into memory of the caller. Its last operators do so without a copy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx, nn

from split_infer_ros.buffers.host_arrays import Values, as_tensor
from split_infer_ros.buffers.layout import Strides
from split_infer_ros.engines.out_forms import OutForm, find_out_form, is_view, may_change_inputs
from split_infer_ros.engines.traced_part import Part, PartChain
from split_infer_ros.engines.written_result import CopiedResult, Result, WrittenResult

Modules = Mapping[str, nn.Module]


@dataclass(frozen=True, slots=True, eq=False)
class StartedPart:
    """A part that has run up to its last operators. ``finish`` runs these.

    Attributes:
        strides: the strides of the memory that ``finish`` needs for each result.
        finish: runs the last operators. It takes memory for each result, with these strides, and writes there.
    """

    strides: tuple[Strides, ...]
    finish: Callable[[Sequence[Values]], None]


class WritingPart(nn.Module):
    """A part that writes its results into given memory: its last operators do so, or a result is copied there.

    The results have the same bits as those of the original part. ``writing_part`` makes such a part.

    Args:
        body: all but the last operators. It maps the part's inputs to the values that the last operators take.
        results: says for each of the part's results whether an operator writes it or it is copied.

    Attributes:
        body, results: the arguments.
    """

    def __init__(self, body: nn.Module, results: Sequence[Result]) -> None:
        super().__init__()
        self.body = body
        self.results = tuple(results)

    @property
    def copied(self) -> tuple[str, ...]:
        """The names of the results that are copied into given memory, because no operator can write them there."""
        return tuple(each.name for each in self.results if isinstance(each, CopiedResult))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Runs the part. Returns its results in new memory."""
        values = self.body(*tensors)
        return tuple(each.compute(values) for each in self.results)

    def start(self, *tensors: Tensor, batched: bool = False) -> StartedPart:
        """Runs all but the last operators.

        Args:
            tensors: the part's inputs.
            batched: whether the results of one image must lie together in memory, behind those of the image before.
                Otherwise the strides are torch's usual ones.
        """
        values = self.body(*tensors)
        started = [each.start(values, batched) for each in self.results]

        def finish(into: Sequence[Values]) -> None:
            for result, memory in zip(started, into, strict=True):
                result.write(as_tensor(memory))

        return StartedPart(tuple(each.strides for each in started), finish)


def writing_part(part: Part) -> Part:
    """Returns a ``WritingPart`` that computes the same, or ``part`` itself if no last operator can write a result.

    The new part shares the modules and weights of ``part``.
    """
    if isinstance(part, PartChain):
        last = writing_part(part.parts[-1])
        if not isinstance(last, WritingPart):
            return part
        return WritingPart(PartChain([*part.parts[:-1], last.body]), last.results)
    if not isinstance(part, fx.GraphModule):
        return part
    modules = dict(part.named_modules())
    tails = [_tail_of(result, modules) for result in _results_of(part.graph)]
    return _divided(part, tails) if any(tail.form is not None for tail in tails) else part


@dataclass(frozen=True, slots=True, eq=False)
class _Tail:
    """The last nodes that compute one result of a part.

    Attributes:
        result: the node of the result.
        call: the node that calls the last operator.
        views: the nodes behind ``call``, in order. They only view the operator's result in another shape.
        form: how the operator is called to write into given memory; None if the result is copied.
    """

    result: fx.Node
    call: fx.Node
    views: tuple[fx.Node, ...]
    form: OutForm | None

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """The nodes that run last, in order."""
        return () if self.form is None else (self.call, *self.views)

    @property
    def inputs(self) -> tuple[fx.Node, ...]:
        """The nodes whose values the last nodes use; for a copied result, the node of the result itself."""
        if self.form is None:
            return (self.result,)
        taken = [source for node in self.nodes for source in node.all_input_nodes if source not in self.nodes]
        return tuple(dict.fromkeys(taken))


def _results_of(graph: fx.Graph) -> list[fx.Node]:
    (results,) = graph.output_node().args
    assert isinstance(results, tuple | list)
    return [each for each in results if isinstance(each, fx.Node)]


def _tail_of(result: fx.Node, modules: Modules) -> _Tail:
    call = result
    views: list[fx.Node] = []
    while is_view(call, modules) and isinstance(call.args[0], fx.Node):
        views.insert(0, call)
        call = call.args[0]
    tail = _Tail(result, call, tuple(views), find_out_form(call, modules))
    return tail if _can_run_last(tail, modules) else _Tail(result, result, (), None)


def _can_run_last(tail: _Tail, modules: Modules) -> bool:
    """Returns whether the tail's nodes compute the same values if all other nodes run before them."""
    if tail.form is None or any(len(node.users) != 1 for node in tail.nodes):
        return False
    output = next(iter(tail.result.users))
    if output.op != "output" or _results_of(output.graph).count(tail.result) != 1:
        return False
    if may_change_inputs(tail.call, modules) and any(len(source.users) != 1 for source in tail.inputs):
        return False
    following, others = tail.call.next, []
    while following is not output:
        others += [] if following in tail.nodes else [following]
        following = following.next
    return not any(may_change_inputs(node, modules) for node in others)


def _divided(part: fx.GraphModule, tails: Sequence[_Tail]) -> WritingPart:
    last = {node for tail in tails for node in tail.nodes}
    kept = list(dict.fromkeys(source for tail in tails for source in tail.inputs))
    body, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in part.graph.nodes:
        if node not in last and node.op != "output":
            copies[node] = body.node_copy(node, copies.__getitem__)
    body.output(tuple(copies[node] for node in kept))
    index = {node: number for number, node in enumerate(kept)}
    return WritingPart(fx.GraphModule(part, body), [_result_of(part, tail, index) for tail in tails])


def _result_of(part: fx.GraphModule, tail: _Tail, index: Mapping[fx.Node, int]) -> Result:
    if tail.form is None:
        return CopiedResult(tail.result.name, index[tail.result])
    view_inputs = [source for node in tail.views for source in node.all_input_nodes if source not in tail.nodes]
    return WrittenResult(
        name=tail.result.name,
        call=tail.call,
        operator=_module_of(part, [tail.call], tail.call.all_input_nodes),
        form=tail.form,
        views=_module_of(part, tail.views, [tail.call, *dict.fromkeys(view_inputs)]),
        view_inputs=list(dict.fromkeys(view_inputs)),
        index={source: index[source] for source in tail.inputs},
    )


def _module_of(part: fx.GraphModule, nodes: Sequence[fx.Node], inputs: Collection[fx.Node]) -> fx.GraphModule:
    """Returns a module that runs these nodes. It returns the last node's result; without nodes, its first input."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(list(copies.values())[-1] if nodes else copies[next(iter(inputs))])
    return fx.GraphModule(part, graph)
