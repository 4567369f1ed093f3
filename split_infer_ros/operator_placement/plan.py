"""Places the operators of a model's graph in two passes (paper 004, §3.1.2).

Pass one tags an operator with the GPU if it is known to perform well there, else with the CPU. Pass two inserts a copy
between neighbours on different processors. Three rules keep copies few:

- All operators that need a value on the other processor share one copy of it.
- An operator that computes nothing, such as a view, runs on the processor of its first input.
- Such an operator runs on the other processor instead if all its users are there and this adds no bytes to copy. No
  bytes are added if its input is copied anyway, or is no larger than its results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

INPUT, OUTPUT = "input", "output"  # the kinds at the ends of a graph
MAX_KINDS_SHOWN = 6  # how many kinds the text names for a run of operators


class Tag(Enum):
    """Where an operator runs. ``ANY`` stands for the processor of its first input."""

    GPU = "gpu"
    CPU = "cpu"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a graph.

    Attributes:
        name: the operator's name, unique in the graph.
        kind: what the operator computes, such as ``conv2d``.
        inputs: names of the operators that give its inputs. Constants are not listed, because every processor has them.
        nbytes: bytes of the tensors in its result; None if it has no tensors.
    """

    name: str
    kind: str
    inputs: tuple[str, ...] = ()
    nbytes: int | None = 0


Rule = Callable[[Operator], Tag | None]
"""Says on which processor an operator runs best; None if the rule does not know the operator."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of an operator's result to the other processor.

    Attributes:
        producer: name of the operator whose result is copied.
        target: the other processor.
        before: name of the first operator that needs the copy. The copy is made right before it.
        nbytes: bytes that are copied.
    """

    producer: str
    target: Tag
    before: str
    nbytes: int


@dataclass(frozen=True)
class PlacementPlan:
    """Says where each operator runs and what is copied.

    Attributes:
        operators: the operators in the order in which they run.
        devices: ``GPU`` or ``CPU``, by the operator's name.
        copies: the copies in the order in which they are made; at most one for each result.
        unlisted: how many operators of each kind the rule did not know. They run on the CPU.
    """

    operators: tuple[Operator, ...]
    devices: Mapping[str, Tag]
    copies: tuple[Copy, ...]
    unlisted: Mapping[str, int]

    @property
    def copied_bytes(self) -> int:
        """The bytes of all copies, for one image."""
        return sum(copy.nbytes for copy in self.copies)


def make_plan(operators: Sequence[Operator], rule: Rule) -> PlacementPlan:
    """Makes the placement plan of a graph: pass one chooses the processors, and pass two the copies.

    Args:
        operators: the operators in the order in which they run. Each comes after its inputs.
        rule: says on which processor each operator runs best.
    """
    has_tensors = {operator.name: operator.nbytes is not None for operator in operators}
    tags = {operator.name: _ask(rule, operator, has_tensors) for operator in operators}
    unlisted = Counter(operator.kind for operator in operators if tags[operator.name] is None)
    devices = _tag(operators, tags)
    _follow_users(operators, tags, devices)
    return PlacementPlan(
        operators=tuple(operators),
        devices=devices,
        copies=tuple(_copies(operators, devices)),
        unlisted=unlisted,
    )


def _ask(rule: Rule, operator: Operator, has_tensors: Mapping[str, bool]) -> Tag | None:
    """Returns the rule's answer; ``ANY`` for an operator without tensors, because it may run anywhere."""
    has_any_tensor = has_tensors[operator.name] or any(has_tensors[name] for name in operator.inputs)
    return rule(operator) if has_any_tensor else Tag.ANY


def _tag(operators: Sequence[Operator], tags: Mapping[str, Tag | None]) -> dict[str, Tag]:
    """Runs pass one: returns the processor of each operator."""
    devices: dict[str, Tag] = {}
    for operator in operators:
        tag = tags[operator.name]
        if tag is Tag.ANY:
            tag = next((devices[name] for name in operator.inputs), None)
        devices[operator.name] = tag or Tag.CPU
    return devices


def _follow_users(operators: Sequence[Operator], tags: Mapping[str, Tag | None], devices: dict[str, Tag]) -> None:
    """Moves operators that compute nothing to their users' processor, from the last operator to the first."""
    by_name = {operator.name: operator for operator in operators}
    users: dict[str, list[Operator]] = {operator.name: [] for operator in operators}
    for operator in operators:
        for name in set(operator.inputs):
            users[name].append(operator)

    def may_move(operator: Operator, device: Tag) -> bool:
        """Returns whether an operator may leave a processor and all its users are on the other one."""
        tensor_inputs = [name for name in operator.inputs if by_name[name].nbytes is not None]
        is_free = tags[operator.name] is Tag.ANY and operator.nbytes is not None and len(tensor_inputs) == 1
        user_devices = {devices[user.name] for user in users[operator.name]}
        return is_free and devices[operator.name] is device and bool(user_devices) and device not in user_devices

    for producer in reversed(operators):
        device = devices[producer.name]
        movable = [user for user in users[producer.name] if may_move(user, device)]
        is_copied_anyway = any(devices[user.name] is not device for user in users[producer.name])
        is_no_larger = producer.nbytes is not None and producer.nbytes <= sum(user.nbytes or 0 for user in movable)
        if producer.nbytes is not None and (is_copied_anyway or is_no_larger):
            for user in movable:
                devices[user.name] = Tag.CPU if device is Tag.GPU else Tag.GPU
        user_devices = {devices[user.name] for user in users[producer.name]}
        if tags[producer.name] is Tag.ANY and not producer.inputs and len(user_devices) == 1:
            devices[producer.name] = user_devices.pop()  # it only needs constants, which are on every processor


def _copies(operators: Sequence[Operator], devices: Mapping[str, Tag]) -> list[Copy]:
    """Runs pass two: returns the copies in order."""
    nbytes = {operator.name: operator.nbytes for operator in operators}
    copies: dict[tuple[str, Tag], Copy] = {}
    for operator in operators:
        target = devices[operator.name]
        for producer in operator.inputs:
            size = nbytes[producer]
            if size is not None and devices[producer] is not target:
                copy = Copy(producer=producer, target=target, before=operator.name, nbytes=size)
                copies.setdefault((producer, target), copy)
    return list(copies.values())


def describe(plan: PlacementPlan) -> str:
    """Returns a plan as text, for users.

    There is a line for each group of successive operators on one processor, and for each copy between two groups. The
    last lines name the kinds of operators that the rule did not know.
    """
    lines: list[str] = []
    run: list[Operator] = []
    copies: dict[str, list[Copy]] = {operator.name: [] for operator in plan.operators}
    for copy in plan.copies:
        copies[copy.before].append(copy)

    def end_run() -> None:
        if run:
            lines.append(f"{plan.devices[run[0].name].value:<4}  {_describe_run(run)}")
            run.clear()

    for operator in plan.operators:
        copies_here = copies[operator.name]
        if operator.nbytes is None and operator.kind != OUTPUT and not copies_here:
            continue  # numbers are on every processor
        if copies_here or (run and plan.devices[operator.name] is not plan.devices[run[0].name]):
            end_run()
        lines += [f"copy  {copy.producer} to the {copy.target.value}, {copy.nbytes:,} bytes" for copy in copies_here]
        run.append(operator)
    end_run()
    for kind, count in plan.unlisted.items():
        lines.append(f"No list knows {kind}, so it runs on the CPU ({count} of it).")
    return "\n".join(lines)


def _describe_run(run: Sequence[Operator]) -> str:
    kinds = Counter(operator.kind for operator in run).most_common()
    shown = ", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in kinds[:MAX_KINDS_SHOWN])
    more = f" and {len(kinds) - MAX_KINDS_SHOWN} kinds more" if len(kinds) > MAX_KINDS_SHOWN else ""
    names = run[0].name if len(run) == 1 else f"{run[0].name} ... {run[-1].name}"
    return f"{names}: {shown}{more}"
