from __future__ import annotations

import json
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.measurements.record import Record, RecordError

RECORD = Record({"cpu": "x"}, {"torch": "2"}, {"model": "m", "shapes": [[1, 3]]}, {"batch": 1}, (0.5, 0.25), None, 7.0)

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
mappings = st.dictionaries(st.text(), plain, max_size=3)
seconds = st.floats(0, 1e6)


@given(mappings, mappings, mappings, mappings, st.lists(seconds), st.none() | st.text(), seconds, mappings)
def test_a_record_comes_back_from_its_line(target, versions, task, config, costs, error, time, facts):
    record = Record(target, versions, task, config, tuple(costs), error, time, {"x of a later version": [1]}, facts)
    line = record.as_line()
    assert "\n" not in line
    assert Record.from_line(line) == record


def test_median_is_of_all_samples_and_infinite_on_failure():
    assert RECORD.median_s == 0.375
    assert Record({}, {}, {}, {}, (1.0,), "out of memory").median_s == math.inf
    assert Record({}, {}, {}, {}, ()).median_s == math.inf


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "no JSON"),
        ("nonsense", "no JSON"),
        (RECORD.as_line()[:-20], "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[1]", "holds a list"),
        ("{}", "lacks target, versions, task, config, costs, error, time"),
        (RECORD.as_line().replace("0.25", "0.01"), "edited"),
        (RECORD.as_line().replace("0.25", "NaN"), "NaN"),
        (RECORD.as_line().replace("0.25", "1e999"), "no JSON"),
        (Record({}, {}, {}, {}, (10**400,)).as_line(), "401 digits is too large"),
        (Record({}, {}, {}, {}, (), facts={"traits": {"pixels": -(10**400)}}).as_line(), "digits is too large"),
        (RECORD.as_line().replace('"digest"', '"other"'), "edited"),
        (Record([], {}, {}, {}, ()).as_line(), "no mapping"),  # type: ignore[arg-type]
        (Record({}, {}, {}, {}, (-1.0,)).as_line(), "not seconds"),
        (Record({}, {}, {}, {}, (True,)).as_line(), "not seconds"),
        (Record({}, {}, {}, {}, (), 3).as_line(), "no text"),  # type: ignore[arg-type]
        (Record({}, {}, {}, {}, (), time=1e300).as_line(), "not seconds since 1970"),
        (Record({}, {}, {}, {}, (), time=-1.0).as_line(), "not seconds since 1970"),
        (Record({}, {}, {}, {}, (), facts=[1]).as_line(), "facts are a list"),  # type: ignore[arg-type]
        (Record({}, {}, {}, {}, (), others={"format": 2}).as_line(), "format 2, of another version"),
    ],
)
def test_line_that_is_no_record_is_refused_with_a_reason(line, words):
    with pytest.raises(RecordError, match=words):
        Record.from_line(line)


def test_deeply_nested_line_is_refused():
    line = Record({}, {}, {}, {}, (), others={"deep": "here"}).as_line()
    for depth in range(sys.getrecursionlimit() - 300, sys.getrecursionlimit()):
        with pytest.raises(RecordError):
            Record.from_line(line.replace('"here"', "[" * depth + "]" * depth))


def test_only_what_is_marked_is_uncertain():
    assert not RECORD.uncertain
    assert "facts" not in RECORD.as_line()
    assert Record({}, {}, {}, {}, (1.0,), facts={"uncertain": True}).uncertain


def test_infinite_costs_cannot_be_written():
    with pytest.raises(ValueError, match="JSON"):
        Record({}, {}, {}, {}, (math.inf,)).as_line()


def test_the_order_of_fields_does_not_matter():
    values = json.loads(RECORD.as_line())
    assert Record.from_line(json.dumps(dict(reversed(values.items())))) == RECORD
