"""The graph tuner's arithmetic (§3.2.3): faster forms of segments weighed against changes of layout between them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

Form = TypeVar("Form", bound=Hashable)


def best_chain(
    costs: Sequence[Mapping[Form, float]], conversion: Callable[[int, Form, Form], float]
) -> tuple[float, list[Form]]:
    """The forms of a chain's segments whose times and conversions add up to the least; of equals, the first found.

    Each segment's best ways are kept by the form in which they end, since all that follows asks for that alone: the
    work grows with segments x forms^2 and the result is optimal.

    Args:
        costs: of each segment in order, seconds by form; what cannot be had is left out, or infinite.
        conversion: (index, form before, form of the segment of that index) to seconds, not negative; asked for
            index 1 on.

    Returns:
        The seconds of the whole, and the form of each segment.

    Raises:
        ValueError: a segment has no form.
    """
    if not all(costs):
        raise ValueError(f"segment {[bool(forms) for forms in costs].index(False)} has no form")
    best: dict[Form, tuple[float, list[Form]]] = {}
    for index, forms in enumerate(costs):
        if not index:
            best = {form: (cost, [form]) for form, cost in forms.items()}
            continue
        further: dict[Form, tuple[float, list[Form]]] = {}
        for form, cost in forms.items():
            total, before = min(
                ((total + conversion(index, last, form), last) for last, (total, _) in best.items()),
                key=lambda found: found[0],
            )
            further[form] = total + cost, [*best[before][1], form]
        best = further
    return min(best.values(), key=lambda found: found[0], default=(0.0, []))
