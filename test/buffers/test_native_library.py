"""The C file's library: compiled once, found again, or missed in a sentence."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from split_infer_ros.buffers import native_library as tested
from split_infer_ros.buffers.native_library import COMPILERS, native_library
from split_infer_ros.errors import ConfigurationError

needs_compiler = pytest.mark.skipif(
    not any(map(tested.shutil.which, COMPILERS)),
    reason="needs a C compiler",  # type: ignore[attr-defined]
)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    source = tmp_path / "seven.c"
    source.write_text("int seven(void) { return 7; }\n")
    return source


@needs_compiler
def test_library_is_compiled_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = native_library(source)
    assert ctypes.CDLL(str(library)).seven() == 7
    monkeypatch.setattr(tested, "_compiled", lambda _: pytest.fail("it is compiled again"))
    assert native_library(source) == library


@needs_compiler
def test_changed_source_is_another_library(source: Path) -> None:
    library = native_library(source)
    source.write_text("int seven(void) { return 8; }\n")
    assert native_library(source) != library


def test_installed_library_is_taken(source: Path) -> None:
    installed = source.with_name(f"lib{source.stem}.so")
    installed.write_bytes(b"")
    assert native_library(source) == installed


def test_missing_compiler_is_reported(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.fspath(source.parent))
    with pytest.raises(ConfigurationError, match=r"seven\.c was not built .* there is no C compiler: install gcc"):
        native_library(source)


@needs_compiler
def test_error_of_the_compiler_is_reported(source: Path) -> None:
    source.write_text("int seven(\n")
    with pytest.raises(ConfigurationError, match=r"cannot compile seven\.c: .*seven\.c:1"):
        native_library(source)


@needs_compiler
def test_cache_that_cannot_be_written_is_reported(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the place of the folder")
    with pytest.raises(ConfigurationError, match=r"the library of seven\.c, cannot be written"):
        native_library(source)
