"""Models of the catalogue that are ONNX files from releases of other projects. They are downloaded at first use."""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from split_infer_ros.errors import ConfigurationError, WeightsError
from split_infer_ros.models.named_weights import NamedWeights
from split_infer_ros.models.onnx_models import is_onnx_file
from split_infer_ros.models.onnx_options import OnnxOptions
from split_infer_ros.runtime.cache import cache_folder
from split_infer_ros.runtime.files import content_digest, write_whole
from split_infer_ros.runtime.user_files import is_regular, user_path

if TYPE_CHECKING:
    from http.client import HTTPResponse

DATA = Path(__file__).with_name("data")
CONNECT_TIMEOUT_S = 10.0
MAX_DOWNLOAD_S = 300.0  # the longest time that a server can hold up a node by sending a byte now and then
CHUNK_BYTES = 1 << 16

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Download:
    """A model file from a release of another project. A file with another length or digest is never used.

    Attributes:
        name: the model's name.
        summary: one line for people.
        url: the file's address.
        nbytes: the file's length in bytes.
        sha256: the SHA-256 of the file's content, in hexadecimal digits.
        licence: the copyright holder and the licence.
        options: how the file is read. All options are given, so a ``FILE.yaml`` beside the file changes nothing.
    """

    name: str
    summary: str
    url: str
    nbytes: int
    sha256: str
    licence: str
    options: OnnxOptions

    @property
    def path(self) -> Path:
        """Where the download is kept: in ``split_infer_ros/models`` in the user's cache folder."""
        return cache_folder() / "models" / f"{self.name}.onnx"

    def as_file(self, weights: str, options: OnnxOptions) -> tuple[str, OnnxOptions]:
        """Returns the path of the model file, and the options with which it is loaded like any ONNX file.

        Without a local copy, the file is downloaded first, unless an earlier download is still there.

        Args:
            weights: the path of a local copy, or any value of ``NamedWeights``. All of these values mean the download.
            options: what the user says about the file. All must be defaults.

        Raises:
            ConfigurationError: the user gave an option, the local copy is missing or has another length or digest, or
                the download fails.
        """
        refuse_options(self.name, options)
        path = self._find() if weights in {named.value for named in NamedWeights} else self._check(weights)
        return str(path), self.options

    def _check(self, weights: str) -> Path:
        path = user_path(weights)
        if not is_regular(path):
            raise WeightsError(f"There is no file {path}; weights of {self.name} takes 'default' or a local copy.")
        if not self._fits(path):
            raise WeightsError(
                f"{path} is not the file of {self.name}, which has {self.nbytes:,} bytes and the SHA-256 "
                f"{self.sha256}: take model:=FILE.onnx to run another file."
            )
        if not is_onnx_file(path.name):
            raise WeightsError(f"{path} is the file of {self.name}, and its name must end in .onnx: rename it.")
        return path

    def _find(self) -> Path:
        path = self.path
        if not self._fits(path):
            _log.info("%s is downloaded from %s, %.1f MB. %s", self.name, self.url, self.nbytes / 1e6, self.licence)
            data = self._fetch()
            try:
                write_whole(path, data)
            except OSError as error:
                raise WeightsError(
                    f"{self.name} cannot be kept in {path} ({error.strerror}): make room there, or download {self.url} "
                    "and set weights to its path."
                ) from error
        return path

    def _fits(self, path: Path) -> bool:
        try:
            return path.stat().st_size == self.nbytes and content_digest(path) == self.sha256
        except OSError:
            return False

    def _fetch(self) -> bytes:
        """Downloads the file's content. Stops reading if more bytes come than the file has.

        Raises:
            WeightsError: the file cannot be downloaded, or what comes has another length or digest.
        """
        import urllib.request  # only here: most starts download nothing
        from http.client import HTTPException

        try:
            with urllib.request.urlopen(self.url, timeout=CONNECT_TIMEOUT_S) as response:
                return self._read(response)
        except (OSError, HTTPException, ValueError) as error:
            raise WeightsError(
                f"{self.name} could not be downloaded ({error}): download {self.url} elsewhere, and set weights to its "
                f"path or place it at {self.path}."
            ) from error

    def _read(self, response: HTTPResponse) -> bytes:
        content, digest, end = bytearray(), hashlib.sha256(), time.monotonic() + MAX_DOWNLOAD_S
        while chunk := response.read1(CHUNK_BYTES):  # returns what has arrived; ``read`` would wait for a whole chunk
            content += chunk
            digest.update(chunk)
            if len(content) > self.nbytes:
                raise OSError(f"the server sends more than the file's {self.nbytes:,} bytes")
            if time.monotonic() > end:
                raise TimeoutError(f"{len(content):,} bytes came in {MAX_DOWNLOAD_S:g} s")
        if len(content) < self.nbytes:
            raise OSError(f"only {len(content):,} of {self.nbytes:,} bytes came")
        if digest.hexdigest() != self.sha256:
            raise OSError(f"what came has the SHA-256 {digest.hexdigest()} instead of {self.sha256}")
        return bytes(content)


def refuse_options(name: str, options: OnnxOptions) -> None:
    """Refuses options for ONNX files if the model is no ONNX file of the user. Other models need no such options.

    Args:
        name: the model's name, for the error message.
        options: what the user says about an ONNX file.

    Raises:
        ConfigurationError: an option is not at its default. The message names the first such option.
    """
    if options.given:
        given = options.given[0]
        raise ConfigurationError(
            f"{given} is '{getattr(options, given)}', but model '{name}' knows that itself; {given} is for FILE.onnx."
        )


_ALL = (
    Download(
        name="yolox_nano",
        summary="YOLOX-Nano of Megvii, 80 classes of COCO; 3.7 MB are downloaded at first use; Apache License 2.0",
        url="https://github.com/Megvii-BaseDetection/YOLOX/releases/download/0.1.1rc0/yolox_nano.onnx",
        nbytes=3_659_407,
        sha256="c789161ed43c8269fcd4e67c67eeeb4e80c622da2eb296a20bc6007bd18a0b7d",
        licence="Copyright (c) 2021-2022 Megvii Inc., Apache License 2.0.",
        options=OnnxOptions(
            decoder="yolox", labels=str(DATA / "coco.txt"), input_size="416x416", preprocessing="yolox"
        ),
    ),
)
DOWNLOADS = {download.name: download for download in _ALL}
