from __future__ import annotations

import functools
import hashlib
import pickle
import urllib.error
import urllib.request
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from split_infer_ros.errors import WeightsError
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.entry import ModelEntry, Weights
from split_infer_ros.models.weights import load_weights

URL = "https://weights.example/tiny-0123abcd.pth"


def build() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))


ENTRY = replace(
    find_model("mobilenet_v2"), name="tiny", build=build, weights=Weights(url=URL, file_name="tiny-0123abcd.pth")
)


def save(state: object, path: Path) -> Path:
    torch.save(state, path)
    return path


@pytest.fixture
def trained() -> nn.Module:
    torch.manual_seed(1)
    return build()


def equal(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("suffix", [".pth", ".safetensors", ".anything"])
def test_a_file_of_weights_is_loaded(trained: nn.Module, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file(trained.state_dict(), path)
    else:
        torch.save(trained.state_dict(), path)
    model = build()
    assert not equal(model, trained)
    load_weights(model, ENTRY, str(path))
    assert equal(model, trained)


def test_the_home_folder_is_expanded(trained: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    save(trained.state_dict(), tmp_path / "w.pth")
    model = build()
    load_weights(model, ENTRY, "~/w.pth")
    assert equal(model, trained)


def test_counters_of_batches_may_be_missing(trained: nn.Module, tmp_path: Path) -> None:
    state = {name: value for name, value in trained.state_dict().items() if "num_batches" not in name}
    model = build()
    load_weights(model, ENTRY, str(save(state, tmp_path / "w.pth")))
    assert equal(model, trained)


def test_none_leaves_a_model_as_built() -> None:
    model = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    load_weights(model, ENTRY, "none")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_of_another_model_change_nothing(trained: nn.Module, tmp_path: Path) -> None:
    state = trained.state_dict()
    wider = dict(state, **{"0.weight": torch.zeros(4, 3, 1, 1)})
    fewer = {name: value for name, value in state.items() if name != "1.bias"}
    more = dict(state, extra=torch.zeros(1))
    for other, first in ((wider, "'0.weight'"), (fewer, "'1.bias'"), (more, "'extra'")):
        model = build()
        before = [parameter.clone() for parameter in model.parameters()]
        with pytest.raises(WeightsError, match="another model's weights than tiny") as refusal:
            load_weights(model, ENTRY, str(save(other, tmp_path / "other.pth")))
        assert first in str(refusal.value)
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


class Harmful:
    """Creates a file when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("harm-done"),)  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not weights",
        pickle.dumps({"a": 1}, protocol=2)[:-3],
        b"PK\x03\x04 half a zip",
        (1 << 40).to_bytes(8, "little") + b"{",
    ],
    ids=["empty", "text", "truncated", "zip", "length"],
)
def test_an_unreadable_file_is_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"cannot be read as weights") as refusal:
        load_weights(build(), ENTRY, str(path))
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_code_in_a_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for content in (pickle.dumps(Harmful(), protocol=2), pickle.dumps({"a": Harmful()}, protocol=2)):
        (tmp_path / "w.pth").write_bytes(content)
        with pytest.raises(WeightsError):
            load_weights(build(), ENTRY, "w.pth")
    with pytest.raises(WeightsError):
        load_weights(build(), ENTRY, str(save({"a": Harmful()}, tmp_path / "w.pth")))
    assert not (tmp_path / "harm-done").exists()


@pytest.mark.parametrize("content", [[1, 2], {"a": 1}, torch.zeros(3)])
def test_a_file_without_a_state_dict_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(WeightsError, match="not a state dict"):
        load_weights(build(), ENTRY, str(save(content, tmp_path / "w.pth")))


def test_a_missing_file_is_refused_with_what_is_accepted(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.pth", tmp_path):
        with pytest.raises(WeightsError, match=r"'default', 'random', 'none' or the path"):
            load_weights(build(), ENTRY, str(path))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of downloads. Every download fails unless a test replaces ``urlopen``."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr(urllib.request, "urlopen", functools.partial(refuse, urllib.error.URLError("no route")))
    return tmp_path / "hub" / "checkpoints"


def refuse(error: Exception, url: str, timeout: float) -> None:
    assert timeout > 0
    raise error


def published(trained: nn.Module) -> tuple[ModelEntry, bytes]:
    """The tiny model with weights at an URL that has the digest of their content in its name."""
    content = BytesIO()
    torch.save(trained.state_dict(), content)
    digest = hashlib.sha256(content.getvalue()).hexdigest()[:8]
    weights = Weights(url=f"https://weights.example/tiny-{digest}.pth", file_name=f"tiny-{digest}.pth")
    return replace(ENTRY, weights=weights), content.getvalue()


def test_default_weights_are_downloaded_once(trained: nn.Module, hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, content = published(trained)
    urls: list[str] = []

    def respond(url: str, timeout: float) -> BytesIO:
        urls.append(url)
        return BytesIO(content)

    monkeypatch.setattr(urllib.request, "urlopen", respond)
    for _ in range(2):
        model = build()
        load_weights(model, entry, "default")
        assert equal(model, trained)
    assert urls == [entry.weights.url]
    assert [path.name for path in hub.iterdir()] == [entry.weights.file_name]


def test_without_network_the_error_names_the_files_place(trained: nn.Module, hub: Path) -> None:
    with pytest.raises(WeightsError) as refusal:
        load_weights(build(), ENTRY, "default")
    place = hub / "tiny-0123abcd.pth"
    for named in ("tiny", "no route", URL, str(place), "'none'"):
        assert named in str(refusal.value)
    assert list(hub.iterdir()) == []
    save(trained.state_dict(), place)  # as the error says
    model = build()
    load_weights(model, ENTRY, "default")
    assert equal(model, trained)


class Breaking(BytesIO):
    """A download that breaks off."""

    def read(self, size: int | None = -1, /) -> bytes:
        raise ConnectionResetError("reset by peer")


@pytest.mark.parametrize("broken", ["reset", "short"])
def test_a_partial_download_is_not_kept(
    trained: nn.Module, hub: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    entry, content = published(trained)
    response = Breaking() if broken == "reset" else BytesIO(content[: len(content) // 2])
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: response)
    with pytest.raises(WeightsError, match="could not be downloaded"):
        load_weights(build(), entry, "default")
    assert list(hub.iterdir()) == []


def test_the_shipped_weights_fit_their_model() -> None:
    entry = find_model("shapes")
    assert entry.weights.path is not None
    assert entry.weights.path.stat().st_size < 1_000_000
    torch.manual_seed(0)
    model = entry.build()
    load_weights(model, entry, "default")
    assert not equal(model, entry.build())
