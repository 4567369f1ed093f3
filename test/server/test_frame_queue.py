"""Frames that wait for their batch: those that give way are counted, and senders wait only while there is no room."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from bright import LONG_S
from stages import frame

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.server.account import Account
from split_infer_ros.server.frame import Frame
from split_infer_ros.server.frame_queue import FrameQueue
from split_infer_ros.server.settings import DropPolicy, StageSettings


class Senders:
    """An open queue and one account of all that is sent to it."""

    def __init__(self, settings: StageSettings) -> None:
        self.changed = threading.Condition()
        self.queue = FrameQueue(settings, self.changed)
        self.queue.is_open = True
        self.account = Account()

    def send(self, *values: int) -> None:
        for value in values:
            pixels, origin = frame(value)
            with self.changed:
                self.queue.add(Frame(pixels, origin, self.account.ledger.receive(0.0), self.account), 0.0)

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.account.ledger.counts().dropped)


def test_frames_that_give_way_are_dropped_as_overrun() -> None:
    senders = Senders(StageSettings(batch_size=2))
    senders.send(1, 2, 3)
    assert (len(senders.queue), senders.dropped) == (2, {"overrun": 1})
    with senders.changed:
        senders.queue.configure(StageSettings(batch_size=1))
        senders.queue.clear(DropReason.SHUTDOWN)
    assert senders.dropped == {"overrun": 2, "shutdown": 1}


def test_a_batch_is_due_at_once_when_no_more_frames_come() -> None:
    senders = Senders(StageSettings(batch_size=2, batch_timeout_s=0.5))
    assert senders.queue.due_at(7.0) is None
    senders.send(1)
    assert senders.queue.due_at(7.0) == 0.5  # it came at 0
    senders.queue.is_open = False
    assert senders.queue.due_at(7.0) == 7.0


def test_a_sender_waits_until_a_batch_is_taken() -> None:
    senders = Senders(StageSettings(batch_size=1, drop_policy=DropPolicy.BLOCK))
    assert senders.queue.wait_for_room(0.0)
    senders.send(1)
    assert not senders.queue.wait_for_room(0.0)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(senders.queue.wait_for_room, LONG_S)
        with senders.changed:
            taken = senders.queue.take()
        senders.queue.tell_senders()
        assert waiting.result(LONG_S)
    assert (len(taken), senders.dropped) == (1, {})


def test_nobody_waits_for_room_in_a_closed_queue() -> None:
    senders = Senders(StageSettings(batch_size=1, drop_policy=DropPolicy.BLOCK))
    senders.send(1)
    senders.queue.is_open = False
    assert senders.queue.wait_for_room(LONG_S)
