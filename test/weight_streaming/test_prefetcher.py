"""The prefetcher alone, with a reader that only counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from brightness_models import LONG_S
from tenant_server import until

from split_infer_ros.errors import StreamError
from split_infer_ros.weight_streaming.chunk_reader import ChunkReader
from split_infer_ros.weight_streaming.packed_header import PAGE
from split_infer_ros.weight_streaming.prefetcher import WeightPrefetcher
from split_infer_ros.weight_streaming.ring_plan import plan_ring
from split_infer_ros.weight_streaming.weight_stream import WeightStream


class CountingReader(ChunkReader):
    """Reads two blocks of a page into a ring of one page. It records the reads, and may fail."""

    def __init__(self) -> None:
        file: Any = SimpleNamespace(path="file", close=lambda: None)
        super().__init__(file, plan_ring([PAGE, PAGE], [0, 1], PAGE), [])
        self.read: list[int] = []
        self.failure: Exception | None = None

    def fetch(self, index: int, memory: memoryview) -> None:
        if self.failure is not None:
            raise self.failure
        self.read.append(index)

    def layer(self, index: int) -> str:
        return str(index)


def run_pass(stream: WeightStream) -> None:
    stream.begin_pass()
    for step in (0, 1):
        stream.begin_step(step)
        stream.end_step(step)
    stream.end_pass(failed=False)


def test_ring_is_left_alone_while_a_removed_reader_runs() -> None:
    prefetcher = WeightPrefetcher(memoryview(bytearray(PAGE)))
    first, second = CountingReader(), CountingReader()
    first_stream, second_stream = WeightStream(prefetcher, first), WeightStream(prefetcher, second)
    first_stream.open()
    first_stream.begin_pass()
    first_stream.begin_step(0)
    prefetcher.remove(first, LONG_S)
    second_stream.open()
    assert not prefetcher.can_read, "the first one's layer still uses the ring"
    first_stream.end_step(0)
    first_stream.end_pass(failed=False)
    run_pass(second_stream)
    assert first.read == [0]
    assert second.read[:2] == [0, 1]
    prefetcher.remove(second, LONG_S)


def test_any_error_of_a_read_ends_the_wait() -> None:
    prefetcher = WeightPrefetcher(memoryview(bytearray(PAGE)))
    reader = CountingReader()
    stream = WeightStream(prefetcher, reader)
    stream.open()
    until(lambda: reader.read == [0])
    stream.begin_pass()
    stream.begin_step(0)
    reader.failure = ValueError("odd")
    stream.end_step(0)
    with pytest.raises(StreamError, match="file cannot be read \\(odd\\)"):
        stream.begin_step(1)
    stream.end_pass(failed=True)
    reader.failure = None
    run_pass(stream)
    prefetcher.remove(reader, LONG_S)
