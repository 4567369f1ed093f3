"""The ledger balances after every step and settles each frame once."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import SplitInferError
from split_infer_ros.server.ledger import Ledger, LedgerCounts, Ticket

REASONS = (DropReason.OVERRUN, DropReason.SHUTDOWN, DropReason.HEAD_ERROR)

steps = st.one_of(
    st.just("receive"),
    st.tuples(st.just("settle"), st.integers(0, 9), st.sampled_from([None, *REASONS])),
    st.tuples(st.just("missed"), st.integers(0, 5), st.sampled_from(REASONS)),
)


def settle(ticket: Ticket, reason: DropReason | None) -> None:
    if reason is None:
        ticket.publish()
    else:
        ticket.drop(reason)


@given(st.lists(steps, max_size=50))
def test_ledger_balances_after_every_step(steps: list[str | tuple[str, int, DropReason | None]]) -> None:
    ledger = Ledger()
    tickets: list[Ticket] = []
    settled: dict[int, DropReason | None] = {}
    missed = dict.fromkeys(REASONS, 0)
    for step in steps:
        if isinstance(step, str):
            tickets.append(ledger.receive(now=float(len(tickets))))
        elif step[0] == "missed":
            reason = step[2]
            assert reason is not None
            ledger.missed(step[1], reason)
            missed[reason] += step[1]
        elif step[1] < len(tickets):
            if step[1] in settled:
                with pytest.raises(SplitInferError, match="twice"):
                    settle(tickets[step[1]], step[2])
            else:
                settle(tickets[step[1]], step[2])
                settled[step[1]] = step[2]
        counts = ledger.counts()
        assert counts.balanced
        assert counts.received == len(tickets) + sum(missed.values())
        assert counts.in_flight == len(tickets) - len(settled)
        assert counts.published == list(settled.values()).count(None)
        for reason in REASONS:
            assert counts.dropped.get(reason, 0) == list(settled.values()).count(reason) + missed[reason]


def test_ticket_keeps_the_time_of_receipt() -> None:
    assert Ledger().receive(now=12.5).received_at == 12.5


def test_counts_that_do_not_add_up_are_unbalanced() -> None:
    counts = LedgerCounts(received=3, published=1, in_flight=1, dropped={"overrun": 1})
    assert counts.balanced
    assert not replace(counts, dropped={}).balanced
    assert not replace(counts, dropped={"overrun": 2}).balanced


def test_counts_do_not_change_later() -> None:
    ledger = Ledger()
    ledger.missed(1, DropReason.MIDDLEWARE)
    before = ledger.counts()
    ledger.missed(1, DropReason.MIDDLEWARE)
    assert before.dropped == {"middleware": 1}
    assert "middleware" in repr(ledger)


def test_only_one_of_many_threads_settles_a_frame() -> None:
    ledger = Ledger()
    tickets = [ledger.receive(0.0) for _ in range(200)]
    refused: list[SplitInferError] = []
    start = threading.Barrier(4)

    def settle_all(reason: DropReason | None) -> None:
        start.wait(30.0)
        for ticket in tickets:
            try:
                settle(ticket, reason)
            except SplitInferError as error:
                refused.append(error)
            assert ledger.counts().balanced

    threads = [threading.Thread(target=settle_all, args=(reason,)) for reason in (None, None, *REASONS[:2])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    counts = ledger.counts()
    assert counts.in_flight == 0
    assert counts.published + sum(counts.dropped.values()) == 200
    assert len(refused) == 3 * 200
