"""scripts/check: which tests are nearest to a change, how many there is time for, and what they took."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import check_change
import pytest
from nearest_tests import SLOW_S, UNKNOWN_S, Near, choose, imported_names, module_name, nearest

ROOT = Path(__file__).parents[1]
FILES = {
    "split_infer_ros/__init__.py": "",
    "split_infer_ros/low.py": "import os\n",
    "split_infer_ros/high.py": "def late():\n    from split_infer_ros import low\n",
    "benchmarks/part/bench.py": "from split_infer_ros.high import (\n    late,\n)\n",
    "test/helpers/helper.py": "import split_infer_ros.high\n",
    "test/test_low.py": "from split_infer_ros.low import os\n",
    "test/test_high.py": "CODE = '''\nimport split_infer_ros.high\n'''\n",
    "test/part/test_helper.py": "from helper import high\n",
    "test/benchmarks/test_bench.py": "from benchmarks.part import bench\n",
    "test/test_pages.py": 'PAGES = "docs"\n',
    "test/part/conftest.py": "",
    "test/part/test_program.py": 'PROGRAM = "split_infer_ros.run"\n',
    "split_infer_ros/run.py": "",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for path, text in FILES.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "scripts").mkdir()
    return tmp_path


def found(checkout: Path, *changed: str) -> list[tuple[str, int]]:
    return [(each.path, each.distance) for each in nearest(checkout, changed, {})]


def test_tests_are_as_far_as_there_are_imports_between(checkout: Path) -> None:
    assert found(checkout, "split_infer_ros/low.py") == [
        ("test/test_low.py", 1),
        ("test/test_high.py", 2),
        ("test/benchmarks/test_bench.py", 3),
        ("test/part/test_helper.py", 3),
    ]
    assert found(checkout, "test/helpers/helper.py") == [("test/part/test_helper.py", 1)]
    assert found(checkout, "test/test_low.py") == [("test/test_low.py", 0)]


def test_modules_that_are_run_by_name_count(checkout: Path) -> None:
    assert found(checkout, "split_infer_ros/run.py") == [("test/part/test_program.py", 1)]


def test_all_tests_of_a_folder_depend_on_its_fixtures(checkout: Path) -> None:
    assert found(checkout, "test/part/conftest.py") == [
        ("test/part/test_helper.py", 1),
        ("test/part/test_program.py", 1),
    ]


def test_pages_are_near_to_tests_that_name_their_folder(checkout: Path) -> None:
    assert found(checkout, "docs/some/page.md") == [("test/test_pages.py", 1)]
    assert found(checkout, "LICENSE") == []


def test_the_shortest_of_equally_near_tests_comes_first(checkout: Path) -> None:
    seconds = {"test/benchmarks/test_bench.py": 3.0, "test/part/test_helper.py": 2.0}
    near = nearest(checkout, ["split_infer_ros/high.py"], seconds)
    assert near == [
        Near("test/test_high.py", 1, UNKNOWN_S),
        Near("test/part/test_helper.py", 2, 2.0),
        Near("test/benchmarks/test_bench.py", 2, 3.0),
    ]


def test_slow_tests_run_if_their_benchmark_or_its_subject_changed(checkout: Path) -> None:
    path = "test/benchmarks/test_bench.py"
    (checkout / path).write_text(f"{FILES[path]}pytestmark = pytest.mark.slow\n")
    for changed, with_slow in {
        path: True,
        "benchmarks/part/bench.py": True,
        "split_infer_ros/high.py": True,  # the benchmark imports it
        "split_infer_ros/low.py": False,  # what the benchmark imports does
    }.items():
        (near,) = [each for each in nearest(checkout, [changed], {path: 3.0}) if each.path == path]
        assert near.with_slow is with_slow, changed
        assert near.seconds == 3.0 + SLOW_S * with_slow
        assert list(check_change.slow_too([near])) == (
            ["-m", "not slow or slow_too", f"--slow-too={path}"] if with_slow else []
        )
        assert check_change.line(near).endswith("with slow tests") is with_slow


def test_slow_tests_do_not_run_if_only_their_fixtures_changed(checkout: Path) -> None:
    path = "test/benchmarks/test_bench.py"
    (checkout / path).write_text(f"{FILES[path]}pytestmark = pytest.mark.slow\n")
    (checkout / "test/conftest.py").write_text("")
    (near,) = [each for each in nearest(checkout, ["test/conftest.py"], {}) if each.path == path]
    assert not near.with_slow


def test_what_does_not_fit_into_the_time_is_left_out() -> None:
    near = [Near("a", 0, 4.0), Near("b", 1, 7.0), Near("c", 1, 6.0)]
    assert choose(near, 10.0) == ([near[0], near[2]], [near[1]])
    assert choose(near, 0.0) == ([], near)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("split_infer_ros/a/b.py", "split_infer_ros.a.b"),
        ("split_infer_ros/a/__init__.py", "split_infer_ros.a"),
        ("test/helpers/simulated_gpu/gpu.py", "simulated_gpu.gpu"),
        ("benchmarks/common/claim.py", "benchmarks.common.claim"),
        ("scripts/results.py", "results"),
    ],
)
def test_modules_have_the_names_by_which_they_are_imported(path: str, name: str) -> None:
    assert module_name(Path(path)) == name


def test_each_kind_of_import_is_seen() -> None:
    text = "import a.b\nfrom c import d, e as f\nfrom g import (\n    h,\n    i,\n)\n# from j import k\n"
    assert [*imported_names(text)][:3] == ["a.b", "c.d", "c.e"]
    assert {"g.h", "g.i"} <= set(imported_names(text))
    assert not any(name.startswith("j") for name in imported_names(text))


def test_the_list_names_what_would_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_change, "changed_since", lambda commit: ["scripts/nearest_tests.py"])
    assert check_change.main(["--list"]) == 0
    out = capsys.readouterr().out
    assert "1  test/test_check.py" in out
    assert check_change.main(["--list", "--seconds", "0"]) == 0
    assert "Left out" in capsys.readouterr().out


TEST = "test/test_check.py::test_each_kind_of_import_is_seen"


def run_pytest(*arguments: str) -> str:
    """What pytest printed. It passed, whatever it skipped."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-cov", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


@pytest.mark.slow
def test_that_runs_only_when_asked() -> None:
    pass


def test_workers_record_seconds_in_time_and_run_slow_tests_of_some_files(tmp_path: Path) -> None:
    """One run shows all three, because workers take seconds to start."""
    file = tmp_path / "durations.json"
    slow = "test/test_check.py::test_that_runs_only_when_asked"
    slow_too = check_change.slow_too([Near("test/test_check.py", 0, 1.0, with_slow=True)])
    until = f"--until={time.time() + 100.0}"
    printed = run_pytest("-n", "2", TEST, slow, until, "--record-durations", str(file), *slow_too)
    assert "2 passed" in printed
    assert "test/test_check.py, " not in printed  # nothing was skipped
    written = json.loads(file.read_text())
    assert list(written["seconds"]) == ["test/test_check.py"]
    assert written["seconds"]["test/test_check.py"] < 60
    assert written["machine"]["cores"] >= 1


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_tests_that_begin_after_the_time_are_skipped_and_named(workers: list[str]) -> None:
    printed = run_pytest(*workers, TEST, f"--until={time.time() - 1.0}")
    assert "1 passed" not in printed
    assert "test/test_check.py, 1 tests" in printed


def test_a_test_that_begins_in_time_runs() -> None:
    printed = run_pytest(TEST, f"--until={time.time() + 60.0}")
    assert "1 passed" in printed
    assert "test/test_check.py, 1 tests" not in printed
