"""Runs in the child of a ``ChildProcess``: answers requests until there are no more."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import Any

READY = "ready"


def serve(
    prepare: Callable[[Sequence[str]], Callable[[dict[str, Any]], dict[str, Any]]], max_idle_s: float | None = None
) -> int:
    """Answers the requests of a ``ChildProcess`` until there are no more. Returns the exit code of this process.

    Args:
        prepare: called once, with the further arguments of the command. Returns a function that takes a request and
            returns its answer. If ``prepare`` raises, the parent gets the error's text.
        max_idle_s: the longest wait for the first request, in seconds; None waits for ever.
    """
    answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    try:
        answer = prepare(sys.argv[2:])
    except Exception as error:
        print(json.dumps({"error": describe_error(error)}), file=answers)
        return 1
    print(json.dumps({READY: True}), file=answers)
    if select.select([sys.stdin], [], [], max_idle_s)[0]:
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line))), file=answers)
    return 0


def describe_error(error: Exception) -> str:
    """Returns an error's type, and the first line of its text."""
    words = str(error).strip()
    return f"{type(error).__name__}: {words.splitlines()[0][:500]}" if words else type(error).__name__
