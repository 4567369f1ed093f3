from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.serving.lanes import Lane, share_cores


def test_lanes_that_can_be_drawn_by_hand() -> None:
    assert share_cores({"a": 1.0}, 4) == (Lane(("a",), 4),)
    assert share_cores({"a": 1.0, "b": 3.0}, 2) == (Lane(("b",), 1), Lane(("a",), 1))
    assert share_cores({"a": 1.0, "b": 3.0}, 4) == (Lane(("b",), 3), Lane(("a",), 1))
    assert share_cores({"a": 1.0, "b": 3.0, "c": 1.5}, 2) == (Lane(("b",), 1), Lane(("c", "a"), 1))


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.floats(1e-3, 10), min_size=1, max_size=8), st.integers(1, 9))
def test_every_model_has_one_lane_and_no_core_is_left_over(weights: dict[str, float], cores: int) -> None:
    lanes = share_cores(weights, cores)
    assert sorted(model for lane in lanes for model in lane.models) == sorted(weights)
    assert sum(lane.cores for lane in lanes) == cores
    assert all(lane.cores >= 1 and lane.models for lane in lanes)
