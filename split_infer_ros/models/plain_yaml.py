"""Reads small YAML files of users as plain data: text, lists and dictionaries, nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import yaml

from split_infer_ros.runtime.text import repair_text

MAX_YAML_CHARACTERS = 2**16
SUFFIXES = (".yaml", ".yml")


def read_plain_yaml(text: str) -> Any:
    """Reads one YAML document. Every value is text as it was written: ``no`` is not false, and ``1.0`` is no number.

    Raises:
        ValueError: the text is too long, is no YAML, has aliases (which can stand for gigabytes), or is nested too
            deeply.
    """
    if len(text) > MAX_YAML_CHARACTERS:
        raise ValueError(f"it has {len(text):,} characters; at most {MAX_YAML_CHARACTERS:,} of YAML are read")
    try:
        return yaml.load(text, Loader=_PlainLoader)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except yaml.YAMLError as error:
        raise ValueError(_problem(error)) from error
    except (ArithmeticError, LookupError, AttributeError, ValueError) as error:  # bad escapes raise these
        raise ValueError(" ".join(str(error).split())[:200]) from error


class _PlainLoader(yaml.BaseLoader):  # type: ignore[misc]
    """Makes text, lists and dictionaries, and no object of any other type."""

    def construct_scalar(self, node: Any) -> str:
        """Returns a text that can be encoded, because an escape may stand for half a character."""
        return repair_text(super().construct_scalar(node))

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuses aliases and tags, and does what the base class does with everything else."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias (*name), and aliases are not read")
        if tag := getattr(self.peek_event(), "tag", None):
            raise yaml.YAMLError(f"it has the tag {tag[:60]}, and tags are not read")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Refuses a key that comes twice, because YAML would keep only its last value."""
        counts = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        twice = next((key for key, count in counts.items() if count > 1), None)
        if twice is not None:
            raise yaml.YAMLError(f"it has the key '{twice[:60]}' twice in a mapping")
        return super().construct_mapping(node, deep)


def _problem(error: yaml.YAMLError) -> str:
    """Returns what is wrong with YAML, and in which line if that is known."""
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    mark = getattr(error, "problem_mark", None)
    return str(problem)[:200] + (f", line {mark.line + 1}" if mark else "")
