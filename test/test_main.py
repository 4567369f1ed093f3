"""``split_infer_ros COMMAND`` says in a sentence what is missing, and hides no fault of its own."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from split_infer_ros import __main__

CHILD_S = 200  # a bound on the process that a test starts; the test's own bound lies above it


@pytest.mark.timeout(2 * CHILD_S)
@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("pack", "error: pack needs the Python package torch, which is not there: pip install torch torchvision."),
        (
            "split_points",
            "model mobilenet_v2 needs the Python package torch, which is not installed: "
            'pip install "torch>=2.6,!=2.13.0" torchvision, or take an ONNX file.',
        ),
    ],
)
def test_command_without_torch_says_what_to_install(command: str, sentence: str, tmp_path: Path) -> None:
    """In a process in which torch cannot be found, as on a machine without it."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    path = os.pathsep.join([str(tmp_path), str(Path(__main__.__file__).parents[1])])
    found = subprocess.run(
        [sys.executable, "-m", "split_infer_ros", command, "mobilenet_v2"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=CHILD_S,
    )
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1] == sentence
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("missing", "advice"),
    [
        ("rclpy", "source /opt/ros/DISTRO/setup.bash, or use scripts/run."),
        ("vision_msgs", "source /opt/ros/DISTRO/setup.bash, or use scripts/run."),
        ("split_infer_ros.msg", "build the package"),
        ("cv2", "pip install opencv-python-headless."),
    ],
)
def test_each_missing_package_has_its_advice(
    missing: str, advice: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(importlib, "import_module", fail)
    assert __main__.run("stats") == 1
    assert f"stats needs the Python package {missing}, which is not there: {advice}" in capsys.readouterr().err


def test_missing_module_of_our_own_is_no_users_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'split_infer_ros.nodes.stats'", name="split_infer_ros.nodes.stats")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(ModuleNotFoundError):
        __main__.run("stats")
