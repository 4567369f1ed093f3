"""Says whether this machine's storage can stream weights while a model computes (paper 002)."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from mmap import mmap
from pathlib import Path
from typing import NamedTuple

import numpy as np

from split_infer_ros.errors import StreamError, WeightsError
from split_infer_ros.telemetry.checkup import Finding, Level
from split_infer_ros.weight_streaming.ring_plan import CHUNK_BYTES
from split_infer_ros.weight_streaming.weights_file import WeightsFile

WHAT = "Storage of streamed weights"
MB = 1e6
CHUNKS = 12  # of the file that is read: more than a disk's own cache answers at once
MAX_WRITE_S, MAX_READ_S = 3.0, 2.0  # a slower disk writes and reads fewer chunks
SIDE, PRODUCTS = 768, 4  # of the square matrices whose products are timed


class Work(NamedTuple):
    """What one image needs of a model of the catalogue.

    Attributes:
        flops: floating-point operations of an image.
        nbytes: bytes of the weights.
    """

    flops: float
    nbytes: float


# The paper's models. From the one that computes longest for each byte to the one that does so shortest.
MODELS = {
    "yolov4": Work(60.10e9, 257.5e6),
    "resnet50": Work(8.18e9, 102.2e6),
    "vgg16": Work(30.94e9, 553.4e6),
    "alexnet": Work(1.43e9, 244.4e6),
}


def check_storage(folder: Path) -> Finding:
    """Measures how fast a folder's storage is read past the page cache, and how fast this CPU computes.

    Args:
        folder: where packed weights are kept. It is made if it is missing. A file is written there and removed.
    """
    try:
        bytes_s, is_direct = read_rate(folder)
    except (OSError, WeightsError, StreamError) as error:
        found = f"{folder} cannot be measured ({error})"
        return Finding(Level.NOTE, WHAT, found, "streamed weights need a folder that can be written: XDG_CACHE_HOME.")
    return judge(folder, bytes_s, is_direct, compute_rate())


def judge(folder: Path, bytes_s: float, is_direct: bool, flops_s: float) -> Finding:
    """Says behind which models reading hides, because a pass with one image computes for longer.

    Args:
        folder: where packed weights are kept.
        bytes_s: bytes that are read a second.
        is_direct: whether they were read past the page cache.
        flops_s: floating-point operations a second.
    """
    ratios = {name: (work.nbytes / bytes_s) / (work.flops / flops_s) for name, work in MODELS.items()}
    hidden = [name for name, ratio in ratios.items() if ratio <= 1]
    late = [f"{name} ({ratio:.1f} times as long)" for name, ratio in ratios.items() if ratio > 1]
    found = f"{bytes_s / MB:,.0f} MB/s in {folder}, and the CPU computes {flops_s / 1e9:,.0f} GFLOP/s"
    if hidden:
        found += f": reading can hide behind {', '.join(hidden)}"
    if late:
        found += f"{'; ' if hidden else ': '}reading takes longer than computing {', '.join(late)}"
    if not is_direct:
        advice = "name a file on a disk in weights_file."
        return Finding(Level.NOTE, WHAT, f"{found}; O_DIRECT is refused there", advice)
    if not hidden:
        advice = "streamed weights would delay every batch: leave weights_residency at resident."
        return Finding(Level.NOTE, WHAT, found, advice)
    return Finding(Level.OK, WHAT, found)


def read_rate(folder: Path) -> tuple[float, bool]:
    """Returns bytes that are read a second in chunks as streamed weights are, and whether past the page cache.

    Raises:
        OSError: no file can be written there.
        WeightsError: the file cannot be opened.
        StreamError: the file cannot be read.
    """
    memory = memoryview(mmap(-1, CHUNK_BYTES))
    with _file_of_chunks(folder) as (path, chunks), closing(WeightsFile.open(path)) as file:
        begin = time.perf_counter()
        for done in range(chunks):
            file.read(done * CHUNK_BYTES, memory, "check-up")
            seconds = time.perf_counter() - begin
            if seconds > MAX_READ_S:
                break
        return (done + 1) * CHUNK_BYTES / seconds, not file.note


def compute_rate() -> float:
    """Returns the most floating-point operations a second in float32 products of matrices, on all cores."""
    matrix = np.ones((SIDE, SIDE), np.float32)
    shortest_s = float("inf")
    for _ in range(PRODUCTS):
        begin = time.perf_counter()
        matrix @ matrix
        shortest_s = min(shortest_s, time.perf_counter() - begin)
    return float(2 * SIDE**3 / shortest_s)


@contextmanager
def _file_of_chunks(folder: Path) -> Iterator[tuple[Path, int]]:
    """Writes a file of random bytes to the disk itself. Yields its path and its number of chunks, then removes it."""
    folder.mkdir(parents=True, exist_ok=True)
    chunk = np.random.default_rng(0).bytes(CHUNK_BYTES)  # storage may compress bytes that repeat
    descriptor, path = tempfile.mkstemp(prefix=".checkup_", dir=folder)
    try:
        begin, chunks = time.perf_counter(), 0
        while chunks < CHUNKS and (not chunks or time.perf_counter() - begin < MAX_WRITE_S):
            os.write(descriptor, chunk)
            os.fsync(descriptor)
            chunks += 1
        yield Path(path), chunks
    finally:
        os.close(descriptor)
        Path(path).unlink()
