"""Tells the names of users' own models from those of the catalogue."""

from __future__ import annotations

PROGRAM_SUFFIX = ".pt2"
TIMM_PREFIX = "timm:"


def is_user_model(name: str) -> bool:
    """Whether a name has the form ``package.module:factory`` or ``FILE.pt2``. ``timm:NAME`` has neither."""
    return (":" in name and not name.startswith(TIMM_PREFIX)) or name.endswith(PROGRAM_SUFFIX)
