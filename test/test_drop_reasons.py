"""The registry of drop reasons."""

from __future__ import annotations

import json

import pytest

from split_infer_ros.drop_reason import DropReason, Reporter


@pytest.mark.parametrize("reason", DropReason)
def test_text_of_a_reason_is_its_value(reason: DropReason) -> None:
    assert (str(reason), f"{reason}", json.loads(json.dumps(reason))) == (reason.value,) * 3
    assert len(reason.value.encode()) <= 24, "a slot's record has room for 24 bytes"
    assert reason.meaning.endswith(".")


def test_head_may_claim_only_its_own_reasons() -> None:
    own = {reason for reason in DropReason if DropReason.claimed_by_head(reason.value) is reason}
    assert own == {reason for reason in DropReason if reason.reporter is Reporter.HEAD} | {DropReason.UNKNOWN_REASON}
    for text in ("", "my own", "head_errors"):
        assert DropReason.claimed_by_head(text) is DropReason.UNKNOWN_REASON


def test_name_that_is_no_reason_is_unknown() -> None:
    assert DropReason.named("overrun") is DropReason.OVERRUN
    assert DropReason.named("my own") is DropReason.UNKNOWN_REASON


def test_intended_reasons_are_those_that_users_ask_for() -> None:
    intended = {reason.value for reason in DropReason if reason.intended}
    wanted = "overrun middleware rate_limited nobody_listens paused inactive shutdown removed"
    assert intended == set(wanted.split())
