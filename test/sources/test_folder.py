from __future__ import annotations

from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pytest

from split_infer_ros.errors import SourceError
from split_infer_ros.sources import open_source


def write(path: Path, blue: int) -> None:
    image = np.zeros((4, 6, 3), np.uint8)
    image[..., 0] = blue
    assert cv2.imwrite(str(path), image)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "b.png", 2)
    write(tmp_path / "a.PNG", 1)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "c").mkdir()
    write(tmp_path / "c" / "d.png", 4)
    return tmp_path


def test_images_come_sorted_by_name_as_bgr(folder: Path) -> None:
    pictures = list(open_source(f"folder:{folder}"))
    assert [p.name for p in pictures] == ["a.PNG", "b.png"]
    assert [p.image[0, 0].tolist() for p in pictures] == [[1, 0, 0], [2, 0, 0]]
    assert {(p.encoding, p.image.shape, p.truth) for p in pictures} == {("bgr8", (4, 6, 3), None)}


def test_loop_begins_again(folder: Path) -> None:
    source = open_source(f"folder:{folder}", loop=True)
    assert [p.name for p in islice(source, 5)] == ["a.PNG", "b.png", "a.PNG", "b.png", "a.PNG"]
    source.close()
    assert list(source) == []


def test_an_unreadable_file_raises(folder: Path) -> None:
    (folder / "aa.png").write_bytes(b"\x89PNG but no more")
    source = open_source(f"folder:{folder}")
    assert next(source).name == "a.PNG"
    with pytest.raises(SourceError, match=r"aa\.png cannot be read"):
        next(source)
    assert next(source).name == "b.png"


def test_an_unreadable_file_is_skipped_with_a_warning(folder: Path) -> None:
    (folder / "aa.png").write_bytes(b"")
    warnings: list[str] = []
    pictures = list(open_source(f"folder:{folder}", warn=warnings.append))
    assert [p.name for p in pictures] == ["a.PNG", "b.png"]
    assert len(warnings) == 1
    assert str(folder / "aa.png") in warnings[0]


def test_a_loop_over_unreadable_files_ends(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(b"nothing")
    warnings: list[str] = []
    with pytest.raises(SourceError, match="None of the 2 images"):
        next(open_source(f"folder:{tmp_path}", loop=True, warn=warnings.append))
    assert len(warnings) == 2


def test_a_missing_folder_and_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        open_source(f"folder:{tmp_path / 'none'}")
    write(tmp_path / "a.png", 1)
    with pytest.raises(SourceError, match="is a file"):
        open_source(f"folder:{tmp_path / 'a.png'}")


def test_a_folder_that_may_not_be_read_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(SourceError, match=rf"^The folder {folder} cannot be read \(.*Permission denied"):
        open_source(f"folder:{folder}")


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no images"):
        open_source(f"folder:{tmp_path}")
