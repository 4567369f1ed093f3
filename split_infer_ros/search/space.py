"""A space of configurations. It says which configurations may be tried, and which an imported record may have."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

Value = str | int | float | bool
Config = Mapping[str, Value]
Frozen = tuple[tuple[str, Value], ...]
Rule = Callable[[Config], str | None]  # returns a sentence that says why a configuration is excluded, or None


def no_rule(config: Config) -> None:
    """Excludes no configuration."""


@dataclass(frozen=True)
class Space:
    """Knobs and the values of each. The first value of a knob is its default.

    Attributes:
        knobs: the values of each knob, by the knob's name. Two values of a knob never have the same text.
        excludes: combinations of values that do not go together. A configuration with one of them would fail, or equal
            another configuration. The defaults are never excluded.
        rule: excludes further configurations, but never the defaults.
    """

    knobs: Mapping[str, Sequence[Value]]
    excludes: Sequence[Config] = ()
    rule: Rule = no_rule

    @property
    def default(self) -> Config:
        """The configuration that runs without tuning: the first value of every knob."""
        return {name: values[0] for name, values in self.knobs.items()}

    def __iter__(self) -> Iterator[Config]:
        """Yields all configurations, the default first."""
        for values in itertools.product(*self.knobs.values()):
            config = dict(zip(self.knobs, values, strict=True))
            if not self._excluded(config) and self.rule(config) is None:
                yield config

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Mapping) and self.objection(config) is None

    def objection(self, config: Mapping[str, object]) -> str | None:
        """Returns a sentence that says why a configuration lies outside the space; None if it lies inside."""
        for name in config:
            if name not in self.knobs:
                close = difflib.get_close_matches(name, self.knobs, n=1)
                hint = f" Did you mean '{close[0]}'?" if close else ""
                return f"There is no knob '{name}'.{hint} There are: {', '.join(self.knobs)}."
        for name, values in self.knobs.items():
            if name not in config:
                return f"The knob '{name}' has no value; it takes one of: {_listed(values)}."
            if not any(value == config[name] and type(value) is type(config[name]) for value in values):
                return f"'{name}' cannot be {config[name]!r}; it takes one of: {_listed(values)}."
        excluded = self._excluded(config)
        if excluded:
            return f"{_listed(f'{k} {v}' for k, v in excluded.items())} do not go together."
        return self.rule(config)  # type: ignore[arg-type]  # its values are the knobs'

    def _excluded(self, config: Mapping[str, object]) -> Config | None:
        for part in self.excludes:
            if all(config[name] == value for name, value in part.items()):
                return part
        return None


def frozen(config: Config) -> Frozen:
    """Returns a configuration as a hashable key. The order of the knobs does not matter."""
    return tuple(sorted(config.items()))


def describe_config(config: Mapping[str, object], default: Mapping[str, object] | None = None) -> str:
    """Returns a description of a configuration for users, such as ``engine openvino, threads 2``.

    If a default is given, the description names only the knobs with another value than in the default.
    """
    different = {name: value for name, value in config.items() if default is None or default.get(name) != value}
    return ", ".join(f"{name} {value}" for name, value in different.items()) or "the defaults"


def _listed(values: Collection[Value] | Iterator[Value]) -> str:
    return ", ".join(str(value) for value in values)
