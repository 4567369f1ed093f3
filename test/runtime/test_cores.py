"""Sets of cores: which texts name one, and which threads are bound."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime import cores as module
from split_infer_ros.runtime import num_threads
from split_infer_ros.runtime.cores import ANY_CORE, Cores, StageCores, as_text, num_physical_cores
from split_infer_ros.runtime.device import CPU, Device

ALLOWED = frozenset(os.sched_getaffinity(0))
ONE = frozenset([min(ALLOWED)])
ABSENT = 8000
two_needed = pytest.mark.skipif(len(ALLOWED) < 2, reason="this process may use one core only")


class Kernel:
    """A kernel with made-up cores. It keeps one set for all threads.

    Attributes:
        allowed: the cores that the process may use.
        bound: the cores of the calling thread.
    """

    def __init__(self, allowed: Iterable[int]) -> None:
        self.allowed = self.bound = set(allowed)

    def get(self, _: int) -> set[int]:
        return self.bound & self.allowed or self.allowed

    def set(self, _: int, numbers: Iterable[int]) -> None:
        if not self.allowed & set(numbers):
            raise OSError(22, "Invalid argument")
        self.bound = set(numbers)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made_up = Kernel(range(8))
    monkeypatch.setattr(os, "sched_getaffinity", made_up.get)
    monkeypatch.setattr(os, "sched_setaffinity", made_up.set)
    monkeypatch.setattr(module, "_AT_START", frozenset(made_up.allowed))
    return made_up


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("", set()), ("  ", set()), ("3", {3}), ("0-2", {0, 1, 2}), (" 1 , 4 - 5,1", {1, 4, 5}), ("7-7", {7})],
)
def test_a_text_lists_numbers_and_ranges(kernel: Kernel, text: str, numbers: set[int]) -> None:
    assert Cores.parse(text, "head_cores").numbers == numbers


@given(st.frozensets(st.integers(0, 200), min_size=1))
def test_a_set_is_written_as_it_is_read(numbers: frozenset[int]) -> None:
    pieces = [range(int(first), int(last or first) + 1) for first, _, last in map(_parted, as_text(numbers).split(","))]
    assert [number for piece in pieces for number in piece] == sorted(numbers)


def _parted(item: str) -> tuple[str, str, str]:
    return item.partition("-")


@pytest.mark.parametrize("text", ["a", "0,", ",", "2-1", "-1", "1.5", "0-99999", "1 2", "0x1", "٣"])
def test_other_texts_are_refused(kernel: Kernel, text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"head_cores cannot be .*such as 0-3,6"):
        Cores.parse(text, "head_cores")


def test_cores_that_do_not_exist_are_named(kernel: Kernel) -> None:
    with pytest.raises(ConfigurationError, match=r"backbone_cores cannot be '6-9,12'; .* may use 0-7, not 8-9,12\."):
        Cores.parse("6-9,12", "backbone_cores")


def test_a_set_that_the_process_was_not_given_is_refused(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with ``taskset``: the kernel would allow the core, but whoever started the process did not."""
    monkeypatch.setattr(module, "_AT_START", frozenset([0, 1]))
    with pytest.raises(ConfigurationError, match=r"may use 0-1, not 2\."):
        Cores.parse("2", "head_cores")


def test_a_thread_and_those_that_it_starts_are_bound() -> None:
    found: list[set[int]] = []
    with Cores(ONE).bound():
        thread = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
        assert os.sched_getaffinity(0) == ONE
    assert found == [ONE]
    assert os.sched_getaffinity(0) == ALLOWED


def test_no_numbers_bind_nothing() -> None:
    with Cores(ONE).bound(), ANY_CORE.bound():
        assert os.sched_getaffinity(0) == ONE
    assert not ANY_CORE.lost


@two_needed
def test_a_bound_thread_computes_with_one_thread_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(num_threads, "_VALUE", "")
    everything = num_threads.max_threads()
    with Cores(ONE).bound():
        assert num_threads.max_threads() == num_physical_cores() == 1
        assert num_threads.fewer_than_all(1) == 0
        num_threads.use_engine_threads(0)
        assert num_threads.engine_threads() == 1
        with ANY_CORE.or_outer().bound():
            assert os.sched_getaffinity(0) == ALLOWED
            assert num_threads.max_threads() == everything
            with Cores(ONE).bound():
                assert ANY_CORE.or_outer().numbers == ALLOWED
        assert os.sched_getaffinity(0) == ONE
    assert os.sched_getaffinity(0) == ALLOWED


@two_needed
def test_a_thread_that_its_owner_has_bound_keeps_that() -> None:
    """Nothing undoes what the program around a pipeline has chosen."""
    os.sched_setaffinity(0, ONE)
    try:
        assert ANY_CORE.or_outer().numbers == ONE
        with Cores(ALLOWED).bound():
            assert ANY_CORE.or_outer().numbers == StageCores().outer.numbers == ONE
        assert os.sched_getaffinity(0) == ONE
    finally:
        os.sched_setaffinity(0, ALLOWED)


@two_needed
def test_more_cores_than_at_the_start_are_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that measures begins on the backbone's cores, and times the head on others."""
    monkeypatch.setattr(module, "_AT_START", ONE)
    monkeypatch.setattr(num_threads, "_MAX_THREADS", 1)
    monkeypatch.setattr(num_threads, "_VALUE", "")
    assert num_threads.max_threads() == num_physical_cores()
    monkeypatch.setattr(num_threads, "_VALUE", "1")
    assert num_threads.max_threads() == 1


@pytest.mark.parametrize(
    ("device", "tuned", "own", "threads"),
    [(CPU, 0, "", 1), (CPU, 2, "", 2), (CPU, 2, "1-3", 3), (Device("cuda"), 2, "", 8), (Device("cuda"), 0, "2", 1)],
)
def test_a_head_has_a_thread_for_each_core_of_its_own(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, device: Device, tuned: int, own: str, threads: int
) -> None:
    monkeypatch.setattr(num_threads, "_MAX_THREADS", 8)
    monkeypatch.setattr(num_threads, "_VALUE", "")
    monkeypatch.setattr(module, "_core_of", lambda number, cpus: str(number))
    before = set(kernel.bound)
    cores = Cores.parse(own, "head_cores")
    with cores.or_outer().bound():
        assert num_threads.default_head_threads(device, tuned, cores) == threads
    assert kernel.bound == before


def test_cores_that_are_taken_away_are_named(kernel: Kernel) -> None:
    cores = StageCores.parse("0-3", "6,7")
    assert not cores.fault
    kernel.allowed = {0, 1, 2, 6, 7}
    assert Cores.parse("0-3", "backbone_cores") == cores.backbone, "other settings can still change"
    assert cores.fault == ("backbone_cores 0-3: this process may not use 3 any more, so its threads run on 0-2.")
    kernel.allowed = {4}
    assert cores.head.fault == (
        "head_cores 6-7: this process may not use 6-7 any more, so its threads run on any core."
    )
    with cores.head.bound():
        assert kernel.get(0) == {4}
        assert num_threads.max_threads() == 1
    kernel.allowed = set(range(8))
    assert not cores.fault


def test_another_process_gets_the_same_cores(kernel: Kernel) -> None:
    cores = StageCores.parse("0-1", "")
    other = StageCores.of_numbers(cores.numbers)
    assert other == cores
    assert cores.numbers == [[0, 1], [], list(range(8))]
    assert other.of_head_threads.numbers == frozenset(range(8))
    assert StageCores.parse("0", "1").of_head_threads.numbers == {1}


def test_an_absent_core_does_not_unbind() -> None:
    with Cores(ONE | {ABSENT}).bound():
        assert os.sched_getaffinity(0) == ONE
    with Cores(ONE).bound(), Cores(frozenset([ABSENT])).bound():
        assert os.sched_getaffinity(0) == ONE
