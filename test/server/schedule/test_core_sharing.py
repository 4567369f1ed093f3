"""How the models of one execution share a CPU's cores."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.server.schedule.core_sharing import CoreShare, share_cores


def test_shares_of_drawn_examples() -> None:
    assert share_cores({"a": 1.0}, 4) == (CoreShare(("a",), 4),)
    assert share_cores({"a": 1.0, "b": 3.0}, 2) == (CoreShare(("b",), 1), CoreShare(("a",), 1))
    assert share_cores({"a": 1.0, "b": 3.0}, 4) == (CoreShare(("b",), 3), CoreShare(("a",), 1))
    assert share_cores({"a": 1.0, "b": 3.0, "c": 1.5}, 2) == (CoreShare(("b",), 1), CoreShare(("c", "a"), 1))


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.floats(1e-3, 10), min_size=1, max_size=8), st.integers(1, 9))
def test_every_model_has_one_share_and_every_core_is_used(work_s: dict[str, float], num_threads: int) -> None:
    shares = share_cores(work_s, num_threads)
    assert sorted(model for share in shares for model in share.models) == sorted(work_s)
    assert sum(share.num_threads for share in shares) == num_threads
    assert all(share.num_threads >= 1 and share.models for share in shares)
