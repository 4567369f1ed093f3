"""The search path of this process and of its children is a list without the working folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from split_infer_ros.runtime.python_child import python_command
from split_infer_ros.runtime.search_path import (
    PACKAGE_FOLDER,
    USER_PATH,
    child_environment,
    drop_working_folder,
    search_path,
    search_user_folders,
)

CHILD_S = 60


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of the test's own. The search path and the variables are put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delenv(USER_PATH, raising=False)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    return tmp_path


@pytest.mark.parametrize("form", ["", ".", "{0}", "{0}/", "{0}/../{1}", "relative"])
def test_no_form_of_the_working_folder_stays(form: str, working_folder: Path) -> None:
    before = list(sys.path)
    sys.path.insert(0, form.format(working_folder, working_folder.name))
    assert search_path() == before


def test_links_to_the_working_folder_do_not_stay(
    working_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    link = tmp_path_factory.mktemp("elsewhere") / "link"
    link.symlink_to(working_folder)
    sys.path.insert(0, str(link))
    assert str(link) not in search_path()


def test_a_source_tree_that_is_the_working_folder_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PACKAGE_FOLDER)
    sys.path.insert(0, "")
    assert "" not in search_path()
    assert PACKAGE_FOLDER in search_path()


def test_dropped_entries_leave_the_environment_too(working_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f":/some/folder:.:{working_folder}:")
    drop_working_folder()
    assert os.environ["PYTHONPATH"] == "/some/folder"
    assert os.environ["PYTHONSAFEPATH"] == "1"


def test_named_folders_are_searched_last_when_asked_for(working_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"/some/folder::{working_folder}:./nets")
    sys.path.insert(0, str(working_folder))
    drop_working_folder()
    assert str(working_folder) not in sys.path
    search_user_folders()
    expected = ["/some/folder", str(working_folder), str(working_folder / "nets")]
    assert sys.path[-3:] == expected
    search_user_folders()
    assert sys.path[-3:] == expected
    assert sys.path.count(str(working_folder)) == 1


def test_an_empty_entry_names_no_folder(working_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":")
    drop_working_folder()
    search_user_folders()
    assert str(working_folder) not in sys.path


def test_a_deleted_working_folder_is_no_fault(working_folder: Path) -> None:
    before = list(sys.path)
    working_folder.rmdir()
    assert search_path() == before


def test_a_child_has_the_path_of_its_parent(working_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "told.py").write_text(
        "import json, os, sys, split_infer_ros\n"
        f"print(json.dumps([sys.path, sys.argv[1:], split_infer_ros.__file__, os.environ.get({USER_PATH!r})]))\n"
    )
    (working_folder / "json.py").write_text("print('ran')")
    sys.path[:0] = ["", str(elsewhere)]
    done = subprocess.run(
        [*python_command("told"), "a", "b"],
        env={**os.environ, **child_environment()},
        capture_output=True,
        text=True,
        timeout=CHILD_S,
        check=True,
    )
    import json

    import split_infer_ros

    path, arguments, package, named = json.loads(done.stdout)
    assert path == search_path()
    assert arguments == ["a", "b"]
    assert package == split_infer_ros.__file__
    assert str(working_folder) in named.split(os.pathsep)  # an interactive Python searches it, so user code is there


def test_one_module_starts_python() -> None:
    package = Path(PACKAGE_FOLDER, "split_infer_ros")
    naming = [path.name for path in package.rglob("*.py") if "sys.executable" in path.read_text()]
    assert naming == ["python_child.py"]
