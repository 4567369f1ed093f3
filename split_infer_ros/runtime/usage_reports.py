"""Keeps third-party libraries from reporting over the network how they are used."""

from __future__ import annotations

import sys

REPORTERS = ("openvino_telemetry",)  # OpenVINO reports each import with it, and NNCF each quantised model


def stop_usage_reports() -> None:
    """Makes libraries that send reports appear not to be installed. Call it before importing libraries that use them.

    OpenVINO and NNCF then use stand-ins that send nothing. A library that this process has already imported stays.
    """
    for name in REPORTERS:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None: its import raises ImportError
