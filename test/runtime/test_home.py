"""A process without a home folder gets one."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from split_infer_ros.runtime import home
from split_infer_ros.runtime.home import ROS_VARIABLES, ensure_home


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ROS_VARIABLES:
        monkeypatch.setenv(name, "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_home_that_is_set_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    ensure_home()
    assert os.environ["HOME"] == str(tmp_path)
    assert not os.environ["ROS_LOG_DIR"]


def test_the_account_has_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    account = pwd.getpwuid(os.getuid()).pw_dir
    if not os.access(account, os.W_OK | os.X_OK):
        pytest.skip(f"the home folder of this account, {account}, cannot be written")
    monkeypatch.setenv("HOME", "")
    ensure_home()
    assert os.environ["HOME"] == account


def test_without_an_account_home_is_temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(user: int) -> pwd.struct_passwd:
        raise KeyError(user)

    monkeypatch.setattr(home.pwd, "getpwuid", unknown)
    monkeypatch.setenv("HOME", "")
    ensure_home()
    made = Path(os.environ["HOME"])
    assert made.parent == tmp_path
    assert made.stat().st_mode & 0o777 == 0o700


def test_a_home_that_is_not_there_keeps_no_logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")
    ensure_home()
    assert os.environ["HOME"] == "/nonexistent"
    assert Path(os.environ["ROS_LOG_DIR"]).parent == tmp_path


def test_the_users_own_log_folder_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("ROS_LOG_DIR", str(tmp_path / "logs"))
    ensure_home()
    assert os.environ["ROS_LOG_DIR"] == str(tmp_path / "logs")
