from __future__ import annotations

from pathlib import Path

import pytest

from split_infer_ros.errors import SourceError
from split_infer_ros.sources import draw_scene, open_source


def test_shapes_gives_the_scenes_of_its_seed_in_order() -> None:
    source = open_source("shapes", seed=9, width=320, height=240)
    for index in range(3):
        picture = next(source)
        scene = draw_scene(9, index, width=320, height=240)
        assert picture.encoding == "rgb8"
        assert picture.name == f"scene {index}"
        assert (picture.image == scene.image).all()
        assert picture.truth is not None
        assert (picture.truth.boxes == scene.boxes).all()
    source.close()
    source.close()
    assert list(source) == []


def test_shapes_refuses_a_bad_size_when_opened() -> None:
    with pytest.raises(SourceError, match="10x10"):
        open_source("shapes", width=10, height=10)


@pytest.mark.parametrize("name", ["", "camera", "shapes:5", "folder", "folder:", "video:", "bag:", "v4l2:", "Shapes"])
def test_an_unknown_source_is_refused_with_known_ones(name: str) -> None:
    with pytest.raises(SourceError, match=r"folder:PATH, video:PATH, bag:PATH\[:TOPIC\] and v4l2:DEVICE") as error:
        open_source(name)
    assert f"'{name}'" in str(error.value)


@pytest.mark.parametrize("kind", ["folder", "video", "bag", "v4l2"])
@pytest.mark.parametrize("name", ["a" * 300, "~nobody_of_this_name/x", "a\0b"])
def test_a_name_that_cannot_be_a_path_is_no_source(kind: str, name: str) -> None:
    if kind == "bag":
        pytest.importorskip("rosbags")
    with pytest.raises(SourceError, match=r"does not exist|There is no camera"):
        open_source(f"{kind}:{name}")


def test_the_home_folder_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SourceError, match=str(tmp_path / "nowhere")):
        open_source("folder:~/nowhere")
