"""Nothing that this package imports reports its use: OpenVINO and NNCF get stand-ins that send nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHILD_S = 100  # a bound on the process that a test starts; the test's own bound lies above it
IMPORT_ALL = """
import sys
from split_infer_ros.quantisation.calibrate import check_packages

check_packages()
from nncf.telemetry.wrapper import telemetry
from openvino.tools.ovc.telemetry_utils import tm

print(sys.modules["openvino_telemetry"], tm.__name__, type(telemetry).__module__)
"""


@pytest.mark.timeout(2 * CHILD_S)
def test_openvino_and_nncf_send_nothing() -> None:
    """In a process of its own: under pytest, NNCF sends nothing anyway."""
    for package in ("onnx", "onnxruntime", "openvino", "nncf"):
        pytest.importorskip(package)
    result = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, timeout=CHILD_S)
    assert result.stdout == "None openvino.tools.ovc.telemetry_stub unittest.mock\n", result.stderr
