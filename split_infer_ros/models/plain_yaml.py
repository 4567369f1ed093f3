"""Reads small YAML files of users as plain data: text, lists and dictionaries, nothing else."""

from __future__ import annotations

from typing import Any

import yaml

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
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:200]) from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class _PlainLoader(yaml.BaseLoader):  # type: ignore[misc]
    """Makes text, lists and dictionaries. It knows no tags, so no object of any other type."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuses aliases, and does what the base class does with everything else."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias (*name), and aliases are not read")
        return super().compose_node(parent, index)
