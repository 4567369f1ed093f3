"""Guards threads against the functions to which they report errors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec

_LOG = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")


def guarded(report: Callable[Arguments, object]) -> Callable[Arguments, None]:
    """Returns a function that calls ``report``, and logs the call if that raises.

    A thread that serves reports its errors and goes on. An exception from the report itself would end it, and its
    frames would never be settled.
    """

    def call(*arguments: Arguments.args, **options: Arguments.kwargs) -> None:
        try:
            report(*arguments, **options)
        except Exception:
            _LOG.exception("An error could not be reported: %s", ", ".join(map(str, arguments)))

    return call
