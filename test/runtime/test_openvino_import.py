"""OpenVINO is imported without its converter, and with it for who asks for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHILD_S = 60  # a bound on the process that a test starts
IMPORT = """
import sys
from split_infer_ros.engines.engine import Engine, import_for

openvino = import_for(Engine.OPENVINO, "openvino")
print([name for name in sys.modules if name.startswith("openvino.tools")])
assert import_for(Engine.OPENVINO, "openvino") is openvino
try:
    openvino.convert_model("nowhere.onnx")
except Exception as error:
    print(type(error).__name__ != "AttributeError", "openvino.tools.ovc" in sys.modules)
from openvino.tools.ovc import convert_model
"""


def test_the_converter_is_imported_at_its_first_call() -> None:
    pytest.importorskip("openvino")
    result = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=CHILD_S)
    assert (result.stdout, result.stderr) == ("[]\nTrue True\n", "")
