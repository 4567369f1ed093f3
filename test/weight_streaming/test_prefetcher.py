"""The reader by itself, with a file that only counts."""

from __future__ import annotations

from typing import Any

import pytest
from bright import LONG_S
from running import until

from split_infer_ros.errors import StreamError
from split_infer_ros.weight_streaming.packed_file import PAGE
from split_infer_ros.weight_streaming.prefetcher import WeightPrefetcher
from split_infer_ros.weight_streaming.ring import circular
from split_infer_ros.weight_streaming.weight_stream import WeightStream
from split_infer_ros.weight_streaming.weights_file import Block


class Counted(WeightStream):
    """Two blocks of a page in a ring of one; notes which are read, and may fail."""

    def __init__(self, reader: WeightPrefetcher) -> None:
        self.read: list[int] = []
        self.failure: Exception | None = None
        blocks: Any = [Block(()), Block(())]
        file: Any = self  # which is closed with the track
        super().__init__(reader, file, circular([PAGE, PAGE], [0, 1], PAGE), blocks)

    path = "file"

    def fetch(self, number: int, memory: memoryview) -> None:
        if self.failure is not None:
            raise self.failure
        self.read.append(number)

    def layer(self, number: int) -> str:
        return str(number)

    def close(self) -> None:
        """As a file."""


def test_what_comes_while_one_that_went_is_still_in_its_pass_does_not_touch_the_ring() -> None:
    reader = WeightPrefetcher(memoryview(bytearray(PAGE)))
    first = Counted(reader)
    first.start()
    first.begin(0)
    reader.drop(first, LONG_S)
    second = Counted(reader)
    with reader._changed:
        assert reader._next() is None, "the first one's layer is still at it"
    first.end(0)
    first.finish(failed=False)
    second.start()
    for step in (0, 1):
        second.begin(step)
        second.end(step)
    second.finish(failed=False)
    assert first.read == [0]
    assert second.read[:2] == [0, 1]
    reader.drop(second, LONG_S)


def test_whatever_keeps_it_from_reading_ends_the_wait() -> None:
    reader = WeightPrefetcher(memoryview(bytearray(PAGE)))
    weight_stream = Counted(reader)
    until(lambda: weight_stream.read == [0])
    weight_stream.start()
    weight_stream.begin(0)
    weight_stream.failure = ValueError("odd")
    weight_stream.end(0)
    with pytest.raises(StreamError, match="file cannot be read \\(odd\\)"):
        weight_stream.begin(1)
    weight_stream.finish(failed=True)
    weight_stream.failure = None
    weight_stream.start()
    for step in (0, 1):
        weight_stream.begin(step)
        weight_stream.end(step)
    weight_stream.finish(failed=False)
    reader.drop(weight_stream, LONG_S)
