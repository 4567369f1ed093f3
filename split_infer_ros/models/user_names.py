"""Tells the names of users' own models from those of the catalogue."""

from __future__ import annotations

from split_infer_ros.errors import ConfigurationError

PROGRAM_SUFFIX = ".pt2"
TIMM_PREFIX = "timm:"
TASK_PREFIX = "task:"  # a task of tenants, which is no model
CLUSTERS = f"{TASK_PREFIX}clusters"


def is_user_model(name: str) -> bool:
    """Whether a name has the form ``package.module:factory`` or ``FILE.pt2``. ``timm:NAME`` has neither."""
    return (":" in name and not name.startswith((TIMM_PREFIX, TASK_PREFIX))) or name.endswith(PROGRAM_SUFFIX)


def is_task(name: str) -> bool:
    """Whether the name that a tenant gives for its model is that of a task."""
    return name.startswith(TASK_PREFIX)


def check_user_code(name: str, *, allow_user_code: bool) -> None:
    """Refuses a user's own model or task unless the user's code may run.

    Raises:
        ConfigurationError: it may not.
    """
    if not allow_user_code:
        raise ConfigurationError(
            f"model '{name}' is loaded by running its code; set allow_user_code to true if you trust it."
        )
