"""Watches begin and end without a deadlock, whoever holds the server's locks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

pytest.importorskip("torch")
from brightness_models import LONG_S
from two_stages import brightness

from split_infer_ros.server.improving.agreement_check import AgreementCheck
from split_infer_ros.server.improving.watches import Watches


class Served:
    """Stands in for a served model. Observers come and go with the server's lock held.

    Attributes:
        changed: the server's lock.
        observers: who observes the model.
        waits: set while somebody waits for the lock.
    """

    def __init__(self) -> None:
        self.changed = threading.Lock()
        self.observers: list[Callable[..., object]] = []
        self.waits = threading.Event()

    def observe(self, observer: Callable[..., object]) -> None:
        self.waits.set()
        with self.changed:
            self.observers.append(observer)

    def ignore(self, observer: Callable[..., object]) -> None:
        if self.changed.acquire(blocking=False):  # the lock of a server may be taken twice by one thread
            self.changed.release()
        self.observers = [each for each in self.observers if each != observer]


@pytest.fixture
def watches() -> Iterator[Watches]:
    found = Watches(cast(Any, None), threading.RLock(), lambda key, line: None)
    found.start()
    yield found
    found.stop()


def check() -> AgreementCheck:
    return AgreementCheck(brightness(), brightness().placed(brightness().device), 0.97)


def test_a_model_is_removed_while_a_watch_waits_for_the_servers_lock(watches: Watches) -> None:
    served = Served()
    adding = threading.Thread(target=watches.add, args=(served, check()))
    removing = threading.Thread(target=watches.remove, args=(served,))
    with served.changed:  # whoever removes a model holds it
        adding.start()
        assert served.waits.wait(LONG_S)
        removing.start()
        removing.join(LONG_S)
        assert not removing.is_alive()
    adding.join(LONG_S)
    assert not adding.is_alive()
    assert served.observers == [], "nobody watches over a model that was removed"


def test_a_second_precision_takes_the_place_of_the_first_one(watches: Watches) -> None:
    served: Any = Served()
    watches.add(served, check())
    (first,) = served.observers
    watches.add(served, check())
    (second,) = served.observers
    assert first != second
    watches.remove(served)
    assert served.observers == []


def test_watches_rest_between_a_stop_and_a_start(watches: Watches) -> None:
    served: Any = Served()
    watches.stop()
    watches.add(served, check())
    assert served.observers == []
    watches.start()
    assert len(served.observers) == 1
    watches.stop()
    assert served.observers == []
