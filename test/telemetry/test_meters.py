"""Windows of samples, and drawn work, which ends in any possible order, compared with a count of the busy ticks."""

from __future__ import annotations

import itertools
import math
import statistics

from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.telemetry.meters import MAX_INTERVALS, BusyTime, Window

END = 40

# (begin, when it was really under way, until when it is open): begin <= start <= end <= told
work = st.lists(st.integers(0, END), min_size=4, max_size=4).map(sorted)
works = st.lists(work, max_size=12)
# (when, how much later the count is read)
looks = st.lists(st.tuples(st.integers(0, END), st.just(0)), max_size=8)
late_looks = (
    st.lists(st.integers(0, END), max_size=16)
    .map(sorted)
    .map(lambda times: [(now, read - now) for now, read in zip(times[::2], times[1::2], strict=False)])
)


def ticks(*times: tuple[int, int]) -> int:
    """Returns how many ticks lie in at least one of the intervals."""
    return len({tick for start, end in times for tick in range(start, end)})


def play(drawn: list[list[int]], looked_at: list[tuple[int, int]]) -> tuple[BusyTime, list[tuple[int, float]]]:
    """Reports the work in the order of time. Returns the seconds of each call."""
    events = [(times[0], 0, number) for number, times in enumerate(drawn)]
    events += [(times[3], 1, number) for number, times in enumerate(drawn)]
    events += [(now + late, 2, now) for now, late in looked_at]
    busy, found = BusyTime(), []
    for now, kind, number in sorted(events):
        if kind == 0:
            busy.begin(number, now)
        elif kind == 1:
            busy.end(number, now, (drawn[number][1], drawn[number][2]))
        else:
            found.append((number, busy.seconds(number)))
    return busy, found


@given(works)
def test_overlapping_work_counts_once(drawn: list[list[int]]) -> None:
    busy, _ = play(drawn, [])
    assert busy.seconds(END) == ticks(*((start, end) for _, start, end, _ in drawn))


@given(works, late_looks)
def test_the_count_grows_at_most_as_fast_as_time(drawn: list[list[int]], looked_at: list[tuple[int, int]]) -> None:
    busy, found = play(drawn, looked_at)
    found = [(0, 0.0), *found, (END, busy.seconds(END))]
    for (before, less), (after, more) in itertools.pairwise(found):
        assert 0 <= more - less <= after - before
    assert busy.seconds(END) >= ticks(*((start, end) for _, start, end, _ in drawn))


@given(works, looks)
def test_open_work_counts_from_its_beginning(drawn: list[list[int]], looked_at: list[tuple[int, int]]) -> None:
    whole = [[begin, begin, told, told] for begin, _, _, told in drawn]
    _, found = play(whole, looked_at)
    for now, seconds in found:
        assert seconds == ticks(*((begin, min(told, now)) for begin, *_, told in whole))


def test_work_without_intervals_was_busy_until_its_end() -> None:
    busy = BusyTime()
    busy.begin("lost", 1.0)
    busy.end("lost", 4.0)
    assert busy.seconds(10.0) == 3.0


def test_impossible_intervals_are_ignored() -> None:
    """Another process may report any intervals."""
    busy = BusyTime()
    for number, times in enumerate([(0.0, 100.0), (math.nan, math.nan), (9.0, 3.0), (-5.0, 1.0)]):
        busy.begin(number, 10.0 * number + 2.0)
        busy.end(number, 10.0 * number + 4.0, times)
        busy.end(number, 10.0 * number + 4.0, times)  # it is over already
    assert busy.seconds(50.0) == 2.0


def test_late_work_does_not_change_reported_seconds() -> None:
    busy = BusyTime()
    busy.begin("first", 0.0)
    busy.end("first", 5.0)
    assert busy.seconds(6.0) == 5.0
    busy.begin("second", 3.0)
    busy.end("second", 8.0)
    assert busy.seconds(8.0) == 7.0


def test_settled_intervals_take_no_memory() -> None:
    busy, count = BusyTime(), 3 * MAX_INTERVALS
    for number in range(count):
        busy.begin(number, float(number))
        busy.end(number, number + 0.5)
        assert busy.num_intervals <= MAX_INTERVALS
    assert busy.seconds(float(count)) == count / 2
    assert busy.num_intervals == 0


def test_percentiles_are_those_of_the_samples() -> None:
    window = Window()
    for value in range(101):
        window.add(float(value), now=1.0)
    assert window.percentiles(0, 50, 99, 100, now=1.0) == (0.0, 50.0, 99.0, 100.0)
    assert window.mean(now=1.0) == 50.0


def test_old_samples_no_longer_count() -> None:
    window = Window(seconds=10.0)
    for time, value in ((0.0, 100.0), (5.0, 1.0), (6.0, 3.0)):
        window.add(value, now=time)
    assert window.mean(now=9.999) == 104 / 3
    assert window.mean(now=10.0) == 2.0
    assert window.percentiles(100, now=15.5) == (3.0,)


def test_without_samples_the_figures_are_nan() -> None:
    window = Window(seconds=1.0)
    assert math.isnan(window.mean(now=0.0))
    window.add(1.0, now=0.0)
    assert all(math.isnan(value) for value in window.percentiles(50, 99, now=1.0))


def test_only_the_newest_are_kept() -> None:
    window = Window(max_samples=3)
    for value in range(10):
        window.add(float(value), now=0.0)
    assert window.percentiles(0, 100, now=0.0) == (7.0, 9.0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_the_median_is_correct(values: list[float]) -> None:
    window = Window()
    for value in values:
        window.add(value, now=0.0)
    (median,) = window.percentiles(50, now=0.0)
    assert math.isclose(median, statistics.median(values), rel_tol=1e-9, abs_tol=1e-6)


def test_old_samples_take_no_memory() -> None:
    window = Window(seconds=10.0)
    for second in range(1000):
        window.add(1.0, now=float(second))
    assert window.num_samples == 10
