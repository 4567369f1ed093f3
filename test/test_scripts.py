"""scripts/run on machines that lack something: one sentence that says what to do, and no environment half-made."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHILD_S = 200  # a bound on the process that a test starts; the test's own bound lies above it
TOOLS = ["awk", "bash", "cat", "cksum", "cmp", "df", "dirname", "find", "flock", "grep", "head", "mkdir", "rm"]
TOOLS += ["sed", "sort", "tail", "uname", "wc"]
NAMES = ("cmake", "make", "c++", "cc")
PYTHON = """#!/bin/sh
case "$*" in
  *ensurepip*) echo "{complaint}" >&2; exit {code} ;;
  *venv*) echo "a reason" >&2; exit 1 ;;
esac
"""

Machine = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Call scripts/run in a copy of the project on a machine with basic tools and whatever is said.

    `python` is what this machine's Python says of itself when asked whether it will do; None: there is none.
    """
    project, path = tmp_path / "project", tmp_path / "bin"
    shutil.copytree(ROOT / "scripts", project / "scripts")
    for name in ("CMakeLists.txt", "LICENSE", "package.xml", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, project)
    for name in ("cmake", "config", "interfaces", "launch", "msg", "split_infer_ros"):
        (project / name).mkdir()
    path.mkdir()

    def executable(name: str, text: str) -> None:
        (path / name).write_text(text)
        (path / name).chmod(0o755)

    for tool in TOOLS:
        found = shutil.which(tool)
        if found is None:
            pytest.skip(f"{tool} is missing here")
        (path / tool).symlink_to(found)

    def run(
        *options: str, without: str = "", python: str | None = "", free_gb: int = 100
    ) -> subprocess.CompletedProcess[str]:
        for name in NAMES:
            if name != without:
                executable(name, "#!/bin/sh\n")
        if python is not None:
            executable("python3", PYTHON.format(complaint=python, code=int(bool(python))))
        (path / "df").unlink()
        executable("df", f"#!/bin/sh\necho Filesystem\necho x x x {free_gb}000000\n")
        return subprocess.run(
            ["bash", project / "scripts/run", *options, "true"],
            env={"PATH": str(path), "HOME": os.environ.get("HOME", "/")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHILD_S,
        )

    return run


@pytest.mark.timeout(2 * CHILD_S)
@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        ({"without": "c++"}, ["C++ compiler is needed", "apt install g++"]),
        ({"without": "cc"}, ["compiler is needed", "apt install g++"]),
        ({"without": "cmake"}, ["CMake is needed", "apt install g++ cmake"]),
        ({"without": "make"}, ["make is needed"]),
        ({"python": None}, ["Python 3.10 to 3.14", "is needed; install one"]),
        ({"python": "is version 3.8"}, ["Python 3.10 to 3.14", "python3 is version 3.8; install one"]),
        ({"python": "has no venv module (Debian: x)"}, ["python3 has no venv module", "install one"]),
        ({"free_gb": 3}, ["needs 9 GB of disk space", "has 3 GB free", "make room"]),
        ({}, ["could not make the environment", "a reason"]),
    ],
)
def test_what_is_lacking_is_said_in_a_sentence(machine: Machine, lacking: dict[str, str], words: list[str]) -> None:
    result = machine(**lacking)
    assert result.returncode == 1
    assert result.stdout == ""
    *steps, last = result.stderr.splitlines()
    assert all(step.startswith("split_infer_ros: Step ") for step in steps)
    assert last.startswith("split_infer_ros: ")
    for word in words:
        assert word in last


@pytest.mark.timeout(2 * CHILD_S)
def test_the_light_environment_needs_less_space(machine: Machine) -> None:
    assert "could not make the environment" in machine("--light", free_gb=3).stderr
    result = machine("--light", free_gb=1)
    assert result.returncode == 1
    assert "needs 2 GB of disk space" in result.stderr.splitlines()[-1]


@pytest.mark.timeout(2 * CHILD_S)
def test_help_needs_no_environment(tmp_path: Path) -> None:
    result = subprocess.run([ROOT / "scripts/run"], capture_output=True, text=True, timeout=CHILD_S, cwd=tmp_path)
    assert result.returncode == 0
    assert (
        "backbone calibrate camera demo doctor head pack pipeline place profile quantise split_points stats"
        in result.stdout
    )
