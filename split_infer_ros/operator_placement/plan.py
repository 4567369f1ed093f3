"""The two passes over a model's graph: a processor for each operator, then copies between neighbours (§3.1.2).

Pass one tags an operator with the GPU if it is known to perform there, else with the CPU. Pass two puts a copy between
neighbours on different processors. Three things keep copies few: whoever needs a value on a processor shares one copy
of it; operators that compute nothing, such as views, run where their input lies; and those whose results are all wanted
on the other processor run there, if what they take is there anyway or is no more than what they give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

INPUT, OUTPUT = "input", "output"  # the kinds at the ends of a graph
MOST_KINDS = 6  # are told of a run


class Tag(Enum):
    """Where an operator runs; ``ANY`` is where its first input lies."""

    GPU = "gpu"
    CPU = "cpu"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a graph.

    Attributes:
        name: its own.
        kind: what it does, such as ``conv2d``.
        inputs: names of the operators whose values it takes; constants are on every processor, and not among them.
        nbytes: what it gives, in tensors; None if that is no tensor.
    """

    name: str
    kind: str
    inputs: tuple[str, ...] = ()
    nbytes: int | None = 0


Rule = Callable[[Operator], Tag | None]
"""Where an operator runs best; None if nobody knows."""


@dataclass(frozen=True, slots=True)
class Copy:
    """What an operator gives, taken to the other processor, right before the operator that first needs it there."""

    producer: str
    target: Tag
    before: str
    nbytes: int


@dataclass(frozen=True)
class PlacementPlan:
    """Where everything runs.

    Attributes:
        operators: in order.
        devices: ``GPU`` or ``CPU`` for each operator's name.
        copies: in order; one for each value and processor.
        unlisted: kinds of operators that the rule did not know, and how many of each; they run on the CPU.
    """

    operators: tuple[Operator, ...]
    devices: Mapping[str, Tag]
    copies: tuple[Copy, ...]
    unlisted: Mapping[str, int]

    @property
    def copied_bytes(self) -> int:
        """By all copies, for the batch that the graph was read with."""
        return sum(copy.nbytes for copy in self.copies)


def make_plan(operators: Sequence[Operator], rule: Rule) -> PlacementPlan:
    """Both passes.

    Args:
        operators: in the order in which they run, each behind its inputs.
        rule: where they run best.
    """
    has_tensors = {operator.name: operator.nbytes is not None for operator in operators}
    tags = {operator.name: _ask(rule, operator, has_tensors) for operator in operators}
    unlisted = Counter(operator.kind for operator in operators if tags[operator.name] is None)
    devices = _tag(operators, tags)
    _follow_users(operators, tags, devices)
    return PlacementPlan(tuple(operators), devices, tuple(_copies(operators, devices)), unlisted)


def _ask(rule: Rule, operator: Operator, has_tensors: Mapping[str, bool]) -> Tag | None:
    """The rule's answer; what works on numbers alone costs nothing anywhere."""
    about_tensors = has_tensors[operator.name] or any(has_tensors[name] for name in operator.inputs)
    return rule(operator) if about_tensors else Tag.ANY


def _tag(operators: Sequence[Operator], tags: Mapping[str, Tag | None]) -> dict[str, Tag]:
    """Pass one."""
    devices: dict[str, Tag] = {}
    for operator in operators:
        tag = tags[operator.name]
        if tag is Tag.ANY:
            tag = next((devices[name] for name in operator.inputs), None)
        devices[operator.name] = tag or Tag.CPU
    return devices


def _follow_users(operators: Sequence[Operator], tags: Mapping[str, Tag | None], devices: dict[str, Tag]) -> None:
    """Move what computes nothing to where its results are wanted, from the last operator to the first."""
    by_name = {operator.name: operator for operator in operators}
    users: dict[str, list[Operator]] = {operator.name: [] for operator in operators}
    for operator in operators:
        for name in set(operator.inputs):
            users[name].append(operator)

    def leaves(operator: Operator, device: Tag) -> bool:
        """True if it may leave that processor and all its users are on the other one."""
        takes = [name for name in operator.inputs if by_name[name].nbytes is not None]
        is_free = tags[operator.name] is Tag.ANY and operator.nbytes is not None and len(takes) == 1
        wanted = {devices[user.name] for user in users[operator.name]}
        return is_free and devices[operator.name] is device and bool(wanted) and device not in wanted

    for producer in reversed(operators):
        device = devices[producer.name]
        leaving = [user for user in users[producer.name] if leaves(user, device)]
        is_there = any(devices[user.name] is not device for user in users[producer.name])
        fits = producer.nbytes is not None and producer.nbytes <= sum(user.nbytes or 0 for user in leaving)
        if producer.nbytes is not None and (is_there or fits):
            for user in leaving:
                devices[user.name] = Tag.CPU if device is Tag.GPU else Tag.GPU
        wanted = {devices[user.name] for user in users[producer.name]}
        if tags[producer.name] is Tag.ANY and not producer.inputs and len(wanted) == 1:
            (devices[producer.name],) = wanted  # made of constants, which are everywhere


def _copies(operators: Sequence[Operator], devices: Mapping[str, Tag]) -> list[Copy]:
    """Pass two."""
    nbytes = {operator.name: operator.nbytes for operator in operators}
    copies: dict[tuple[str, Tag], Copy] = {}
    for operator in operators:
        target = devices[operator.name]
        for producer in operator.inputs:
            size = nbytes[producer]
            if size is not None and devices[producer] is not target:
                copies.setdefault((producer, target), Copy(producer, target, operator.name, size))
    return list(copies.values())


def describe(plan: PlacementPlan) -> str:
    """For people: a line for each run of operators on one processor, and for each copy between."""
    lines: list[str] = []
    run: list[Operator] = []
    copies: dict[str, list[Copy]] = {operator.name: [] for operator in plan.operators}
    for copy in plan.copies:
        copies[copy.before].append(copy)

    def end_run() -> None:
        if run:
            lines.append(f"{plan.devices[run[0].name].value:<4}  {_told(run)}")
            run.clear()

    for operator in plan.operators:
        moved = copies[operator.name]
        if operator.nbytes is None and operator.kind != OUTPUT and not moved:
            continue  # numbers are everywhere
        if moved or (run and plan.devices[operator.name] is not plan.devices[run[0].name]):
            end_run()
        lines += [f"copy  {copy.producer} to the {copy.target.value}, {copy.nbytes:,} bytes" for copy in moved]
        run.append(operator)
    end_run()
    for kind, count in plan.unlisted.items():
        lines.append(f"No list knows {kind}, so it runs on the CPU ({count} of it).")
    return "\n".join(lines)


def _told(run: Sequence[Operator]) -> str:
    kinds = Counter(operator.kind for operator in run).most_common()
    told = ", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in kinds[:MOST_KINDS])
    more = f" and {len(kinds) - MOST_KINDS} kinds more" if len(kinds) > MOST_KINDS else ""
    place = run[0].name if len(run) == 1 else f"{run[0].name} ... {run[-1].name}"
    return f"{place}: {told}{more}"
