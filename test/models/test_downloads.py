"""Models that are downloaded: from a server of the test's own, and from one that fails in many ways."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from split_infer_ros.errors import ConfigurationError, UnknownModelError, WeightsError
from split_infer_ros.models import downloads
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.downloads import DOWNLOADS, Download
from split_infer_ros.models.onnx_models import OnnxFile
from split_infer_ros.models.onnx_options import OnnxOptions
from split_infer_ros.models.recipe import Recipe
from split_infer_ros.models.side_file import SideFile, read_side_file
from split_infer_ros.split.located_spec import located
from split_infer_ros.split.model_spec import ModelSpec

CONTENT = bytes(range(256)) * 1000
DEFAULT = OnnxOptions()

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "split_infer_ros" / "models"


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Download]]:
    """Start a server that answers so; get a download from it."""
    servers = []

    def start(answer: Answer) -> Download:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer(self)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return download_from(f"http://127.0.0.1:{server.server_port}/small.onnx")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def download_from(url: str) -> Download:
    return Download(
        name="small",
        summary="a small one",
        url=url,
        nbytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        licence="Copyright (c) Nobody, Some License.",
        options=OnnxOptions(decoder="yolox"),
    )


def sends(data: bytes, length: int | None = None) -> Answer:
    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        if length is not None:
            request.send_header("Content-Length", str(length))
        request.end_headers()
        request.wfile.write(data)

    return answer


def test_a_file_is_downloaded_once(
    serve: Callable[[Answer], Download], cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    requests = []

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        requests.append(request.path)
        sends(CONTENT)(request)

    download = serve(answer)
    with caplog.at_level(logging.INFO):
        for weights in ("default", "none", "random"):
            name, options = download.as_file(weights, DEFAULT)
    assert Path(name) == cache / "small.onnx"
    assert Path(name).read_bytes() == CONTENT
    assert options == download.options
    assert requests == ["/small.onnx"]
    (line,) = [record.message for record in caplog.records if "downloaded" in record.message]
    assert download.url in line
    assert download.licence in line


def test_a_damaged_file_in_the_cache_is_downloaded_anew(serve: Callable[[Answer], Download], cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "small.onnx").write_bytes(CONTENT[:-1] + b"x")
    name, _ = serve(sends(CONTENT)).as_file("default", DEFAULT)
    assert Path(name).read_bytes() == CONTENT


def refuses(request: http.server.BaseHTTPRequestHandler) -> None:
    request.send_error(404)


def hangs_up(request: http.server.BaseHTTPRequestHandler) -> None:
    request.connection.shutdown(socket.SHUT_RDWR)


def leads_to_a_file(request: http.server.BaseHTTPRequestHandler) -> None:
    request.send_response(302)
    request.send_header("Location", "file:///etc/passwd")
    request.end_headers()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (sends(CONTENT[:1000]), "only 1,000 of 256,000 bytes came"),
        (sends(CONTENT[:1000], len(CONTENT)), "1,000|1000"),
        (sends(b""), "only 0 of"),
        (sends(CONTENT[:-1] + b"x"), "has the SHA-256 .* instead of"),
        (sends(CONTENT * 3), "sends more than the file's 256,000 bytes"),
        (refuses, "404"),
        (hangs_up, "could not be downloaded"),
        (leads_to_a_file, "not allowed"),
    ],
    ids=["short", "cut off", "empty", "other digest", "too long", "404", "hangs up", "redirect to a file"],
)
def test_a_download_that_fails_leaves_nothing(
    serve: Callable[[Answer], Download], cache: Path, answer: Answer, reason: str
) -> None:
    download = serve(answer)
    with pytest.raises(WeightsError, match=reason) as refusal:
        download.as_file("default", DEFAULT)
    assert str(refusal.value).startswith("small could not be downloaded (")
    assert f"download {download.url} elsewhere, and set weights to its path" in str(refusal.value)
    assert not cache.exists() or not list(cache.iterdir())


def test_a_server_that_is_too_slow_is_given_up(
    serve: Callable[[Answer], Download], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "MAX_DOWNLOAD_S", 0.0)
    with pytest.raises(WeightsError, match=r"bytes came in 0 s"):
        serve(sends(CONTENT)).as_file("default", DEFAULT)


def test_a_server_that_drips_is_given_up(serve: Callable[[Answer], Download], monkeypatch: pytest.MonkeyPatch) -> None:
    """A download that waited for a whole chunk would get all 60 bytes."""

    def drip(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        with contextlib.suppress(OSError):  # nobody listens any more
            for byte in CONTENT[:60]:
                request.wfile.write(bytes([byte]))
                time.sleep(0.05)

    monkeypatch.setattr(downloads, "MAX_DOWNLOAD_S", 0.3)
    with pytest.raises(WeightsError, match=r"\((?!60 )\d+ bytes came in 0\.3 s\)"):
        serve(drip).as_file("default", DEFAULT)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x", "file:///does/not/exist", "no url"])
def test_without_a_network_it_is_refused(url: str) -> None:
    with pytest.raises(WeightsError, match="could not be downloaded"):
        download_from(url).as_file("default", DEFAULT)


def test_a_cache_that_cannot_be_written_is_named(serve: Callable[[Answer], Download], cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be")
    with pytest.raises(WeightsError, match=rf"^small cannot be kept in {cache}.*set weights to its path\.$"):
        serve(sends(CONTENT)).as_file("default", DEFAULT)


def test_a_local_copy_takes_no_download(tmp_path: Path, cache: Path) -> None:
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(CONTENT)
    name, options = download_from("no url").as_file(str(copy), DEFAULT)
    assert Path(name) == copy
    assert options.decoder == "yolox"
    assert not cache.exists()


def test_another_file_is_no_local_copy(tmp_path: Path) -> None:
    download, other = download_from("no url"), tmp_path / "other.onnx"
    for content in (b"", CONTENT[:-1], CONTENT[:-1] + b"x"):
        other.write_bytes(content)
        with pytest.raises(WeightsError, match=rf"^{other} is not the file of small.*take model:=FILE\.onnx"):
            download.as_file(str(other), DEFAULT)


@pytest.mark.parametrize("name", ["none.onnx", "a" * 300, "~nobody_of_this_name/x.onnx"])
def test_a_local_copy_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(WeightsError, match=rf"^There is no file {name}; weights of small takes"):
        download_from("no url").as_file(name, DEFAULT)


def test_a_local_copy_ends_in_onnx(tmp_path: Path) -> None:
    """By its name, it is loaded like any ONNX file."""
    copy = tmp_path / "copy.bin"
    copy.write_bytes(CONTENT)
    sentence = rf"^{copy} is the file of small, and its name must end in \.onnx: rename it\.$"
    with pytest.raises(WeightsError, match=sentence):
        download_from("no url").as_file(str(copy), DEFAULT)


def test_options_of_onnx_files_are_refused_before_a_download() -> None:
    sentence = r"^decoder is 'yolov8', but model 'yolox_nano' knows that itself; decoder is for FILE\.onnx\.$"
    with pytest.raises(ConfigurationError, match=sentence):
        located(ModelSpec("yolox_nano", decoder="yolov8"))


def test_the_catalogue_downloads_nothing(serve: Callable[[Answer], Download], cache: Path, tmp_path: Path) -> None:
    """A spec is resolved to a file before. It also has the weights, which may name a local copy."""
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(CONTENT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DOWNLOADS, "small", serve(sends(CONTENT)))
        assert located(ModelSpec("small", str(copy))).name == str(copy)
        with pytest.raises(UnknownModelError):
            find_model("small")
    assert not cache.exists()


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'yolox_nano'"):
        find_model("yolox-nano")


@pytest.mark.parametrize("download", DOWNLOADS.values(), ids=str)
def test_a_release_is_described_in_full(download: Download) -> None:
    assert download.url.startswith("https://")
    assert len(bytes.fromhex(download.sha256)) == 32
    assert "Copyright" in download.licence
    assert "License" in download.summary
    assert len(Path(download.options.labels).read_text().splitlines()) == 80
    assert len(download.options.given) == len(fields(OnnxOptions)), "else a file beside it would say the rest"


def test_a_file_beside_a_release_does_not_count(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from onnx_files import hollow

    (tmp_path / "m.yaml").write_text("decoder: yolov8\nlabels: [a]\npreprocessing: stretch\ninput_size: 32x32\n")
    side, options = read_side_file(tmp_path / "m.onnx"), DOWNLOADS["yolox_nano"].options
    assert side.path is not None
    graph = hollow({"output": (1, 3549, 85)}, inputs={"images": (1, 3, 416, 416)})
    files = [OnnxFile("m.onnx", graph, options, each, tmp_path) for each in (side, SideFile())]
    one, other = (file.entry(file.recognise()) for file in files)
    assert (one.preprocess, one.labels) == (other.preprocess, other.labels)
    assert one.preprocess == Recipe.parse("yolox").preprocess(416, 416)
