"""Keeps other makers' libraries from reporting over the network how they are used."""

from __future__ import annotations

import sys

REPORTERS = ("openvino_telemetry",)  # OpenVINO reports each import by it, and NNCF each quantised model


def stop_usage_reports() -> None:
    """Makes the libraries that send reports look as if they were not installed; call it before what uses them.

    OpenVINO and NNCF then use stand-ins that send nothing. A library that this process has imported already stays.
    """
    for name in REPORTERS:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None: its import raises ImportError
