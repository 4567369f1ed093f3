"""scripts/check: which tests are nearest to a change, how many there is time for, and what they took."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import check_change
import pytest
from nearest_tests import UNKNOWN_S, Near, choose, imported_names, module_name, nearest

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


def test_seconds_of_each_file_are_recorded(tmp_path: Path) -> None:
    file = tmp_path / "durations.json"
    command = [sys.executable, "-m", "pytest", "-q", "--no-cov", "-p", "no:cacheprovider", "-n", "2"]
    command += ["test/test_check.py::test_each_kind_of_import_is_seen", "--record-durations", str(file)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    written = json.loads(file.read_text())
    assert list(written["seconds"]) == ["test/test_check.py"]
    assert written["seconds"]["test/test_check.py"] < 60
    assert written["machine"]["cores"] >= 1


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_tests_that_begin_after_the_time_are_skipped_and_named(workers: list[str]) -> None:
    test = "test/test_check.py::test_each_kind_of_import_is_seen"
    command = [sys.executable, "-m", "pytest", "-q", "--no-cov", "-p", "no:cacheprovider", *workers, test]
    for seconds, passed in ((60.0, True), (-1.0, False)):
        done = subprocess.run(
            [*command, f"--until={time.time() + seconds}"], check=True, capture_output=True, text=True, cwd=ROOT
        )
        assert ("1 passed" in done.stdout) is passed
        assert ("test/test_check.py, 1 tests" in done.stdout) is not passed
