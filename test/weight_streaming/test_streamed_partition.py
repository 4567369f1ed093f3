"""Partitions on streamed weights give what resident ones give, and what goes wrong has a name."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from _hollow_model import hollow_model
from comparing import rounding
from odd_model import House

from split_infer_ros.errors import ConfigurationError, StreamError, WeightsError
from split_infer_ros.split.graph import state_of
from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming import partition_weights as contents_module
from split_infer_ros.weight_streaming.pack import pack_model
from split_infer_ros.weight_streaming.packed_file import Piece, read_header
from split_infer_ros.weight_streaming.partition_weights import open_contents
from split_infer_ros.weight_streaming.residency import ASYNCHRONOUS, SYNCHRONOUS, TWO_STAGE, keep_first, place
from split_infer_ros.weight_streaming.ring import least_capacity
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition
from split_infer_ros.weight_streaming.unpack import unpack
from split_infer_ros.weight_streaming.weights_file import WeightsFile


def piece_of(house: House, layer: str) -> Piece:
    return next(piece for piece in read_header(house.path).pieces if piece.layer == layer)


def damage(house: House, piece: Piece) -> bytes:
    """Turn a byte of a piece around; returns what it was."""
    with house.path.open("r+b") as file:
        file.seek(piece.offset)
        old = file.read(1)
        file.seek(piece.offset)
        file.write(bytes([old[0] ^ 64]))
    return old


def several(partition: StreamedPartition, images: torch.Tensor, passes: int) -> None:
    for _ in range(passes):
        first(partition, images)


def first(partition: StreamedPartition, images: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        (logits,) = partition(images)
    return logits


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """But for rounding: a tile of rows takes another kernel than the whole layer."""
    return rounding(found, expected) <= 1e-5


@pytest.mark.parametrize(
    ("residency", "passes"),
    [(SYNCHRONOUS, 40), (ASYNCHRONOUS, 40), (TWO_STAGE, 40), pytest.param(ASYNCHRONOUS, 1000, marks=pytest.mark.slow)],
)
def test_many_passes_give_what_resident_weights_give(house: House, residency: str, passes: int) -> None:
    """Each of the passes after another image."""
    with torch.inference_mode():
        expected = [house.resident(image[None]) for image in house.images]
    partition = house.streamed(residency)
    first_time = [first(partition, image[None]) for image in house.images]
    assert all(same(found, wanted) for found, wanted in zip(first_time, expected, strict=True))
    for index in range(passes):
        assert torch.equal(first(partition, house.images[index % 8][None]), first_time[index % 8])  # the same half
    stats = partition.stats()
    assert stats.passes == passes + 8
    assert stats.bytes_read >= stats.passes * sum(house.contents().sizes)
    assert partition.times is not None
    assert len(partition.times.steps) == len(house.contents().uses)
    partition.close()


def test_untiled_weights_give_the_same_bits(house: House, tmp_path: Path) -> None:
    """They lie in the file as oneDNN brings resident ones for the same kernel."""
    whole = House(house.model, tmp_path / "whole.weights", house.images)
    header = pack_model(house.model, whole.path, 1)
    assert len(header.pieces) == len({piece.layer for piece in header.pieces})
    partition = whole.streamed(TWO_STAGE)
    for image in house.images:
        with torch.inference_mode():
            assert torch.equal(first(partition, image[None]), house.resident(image[None]))
    partition.close()


def test_a_head_streams_as_well(house: House) -> None:
    contents = house.contents(head=True)
    partition = StreamedPartition(contents, place(TWO_STAGE, contents.sizes, contents.uses).plan)
    with torch.inference_mode():
        features = house.model.backbone("default")(house.images[:1])
        (found,), (expected,) = partition(*features), house.model.head("default")(*features)
    assert same(found, expected)
    partition.close()


def test_calls_of_a_shared_layer_follow_each_other(house: House) -> None:
    """So none of its weights is needed over many others."""
    contents = house.contents()
    assert [piece.row for piece in contents.pieces["wide"]] == [0, 16, 32, 48]
    assert least_capacity(contents.sizes, contents.uses) == max(contents.sizes)
    names = [call.layer.name for call in contents.calls]
    assert [names.count(name) for name in ("shared.0", "shared.2")] == [2, 2]
    assert all(names[names.index(name) + 1] == name for name in ("shared.0", "shared.2"))


def test_first_layers_may_stay(house: House) -> None:
    contents = house.contents()
    largest = max(contents.sizes)
    placement = keep_first(contents.sizes, contents.uses, sum(contents.sizes) - largest, 2 * largest)
    assert placement is not None
    assert placement.resident
    partition = StreamedPartition(contents, placement.plan, placement.resident)
    with torch.inference_mode():
        assert same(first(partition, house.images[:1]), house.resident(house.images[:1]))
    partition.close()
    assert partition.stats().bytes_read < 3 * sum(contents.sizes)


def test_packed_weights_come_out_as_they_went_in(house: House) -> None:
    state = state_of(house.model.graph)
    found = unpack(house.model, house.path, 1, state.keys())
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], state[name]) for name in state)


def test_a_hollow_model_has_the_cuts_and_fingerprint_of_a_whole_one(house: House) -> None:
    hollow = hollow_model("shapes")
    whole = SplitModel(hollow.entry, hollow.entry.build().eval(), torch.device("cpu"))
    assert (hollow.split_points, hollow.fingerprint) == (whole.split_points, whole.fingerprint)


def test_another_models_file_is_refused(house: House) -> None:
    other = hollow_model("shapes")
    with pytest.raises(WeightsError, match=r"holds the weights of odd .* not of shapes"):
        open_contents(other, other.graph, house.path, 1)
    with pytest.raises(WeightsError, match="another machine"):
        open_contents(house.model, house.model.graph, house.path, 7)


def test_a_budget_below_what_is_needed_is_refused_with_the_number(house: House) -> None:
    contents = house.contents()
    with pytest.raises(ConfigurationError, match=r"needs a weights_budget_mb of 0\.\d for this model, not 0\.01"):
        place(TWO_STAGE, contents.sizes, contents.uses, 10_000)


@pytest.mark.parametrize("layer", ["stem.0", "last"])
def test_a_damaged_layer_is_named_and_the_next_pass_recovers(own_file: House, layer: str) -> None:
    piece = piece_of(own_file, layer)
    old = damage(own_file, piece)
    partition = own_file.streamed()
    for _ in range(2):
        with pytest.raises(StreamError, match=f"Layer '{layer}' is not as it was written") as caught:
            first(partition, own_file.images[:1])
        assert caught.value.reason == "weights_damaged"
    with own_file.path.open("r+b") as file:
        file.seek(piece.offset)
        file.write(old)
    for _ in range(3):  # what was read ahead of the repair may fail once more
        try:
            found = first(partition, own_file.images[:1])
        except StreamError:
            continue
    with torch.inference_mode():
        assert same(found, own_file.resident(own_file.images[:1]))
    partition.close()


def test_damage_that_comes_later_is_found_in_turns(own_file: House) -> None:
    partition = own_file.streamed()
    first(partition, own_file.images[:1])
    damage(own_file, piece_of(own_file, "last"))
    with pytest.raises(StreamError, match="last"):
        several(partition, own_file.images[:1], 3 * len(own_file.contents().blocks))
    partition.close()


@pytest.mark.parametrize("rest", [4096, 5000])
def test_a_file_that_is_cut_short_while_read_fails_that_pass_by_name(
    own_file: House, rest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it ends: a disk with O_DIRECT does not go on within a page."""
    plain = os.preadv

    def preadv(file: int, buffers: Any, offset: int) -> int:
        if offset % 4096:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return plain(file, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    partition = own_file.streamed()
    whole = own_file.path.read_bytes()
    first(partition, own_file.images[:1])
    os.truncate(own_file.path, piece_of(own_file, "wide").offset + rest)
    with pytest.raises(StreamError, match="ends within layer") as caught:
        several(partition, own_file.images[:1], 3)
    assert caught.value.reason == "weights_truncated"
    own_file.path.write_bytes(whole)
    for _ in range(3):
        try:
            found = first(partition, own_file.images[:1])
        except StreamError:
            continue
    with torch.inference_mode():
        assert same(found, own_file.resident(own_file.images[:1]))
    partition.close()


def test_a_disk_that_stalls_ends_the_wait_and_leaves_the_ring_whole(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, plain = threading.Event(), WeightsFile.read
    goes_on.set()

    def read(self: WeightsFile, offset: int, into: memoryview, layer: str) -> None:
        assert goes_on.wait(60)
        plain(self, offset, into, layer)

    monkeypatch.setattr(WeightsFile, "read", read)
    partition = house.streamed(TWO_STAGE, stall_s=0.1)
    first(partition, house.images[:1])
    goes_on.clear()
    for _ in range(2):
        with pytest.raises(StreamError, match=r"did not give layer '.+' within 0\.1 s") as caught:
            several(partition, house.images[:1], 2)
    assert caught.value.reason == "weights_stalled"
    goes_on.set()
    patient = house.streamed(TWO_STAGE)
    for _ in range(100):  # until the disk has caught up
        try:
            found = first(partition, house.images[1:2])
            break
        except StreamError:
            continue
    assert torch.equal(found, first(patient, house.images[1:2]))  # another partition from the same file
    assert partition.stats().stalled_s >= 0.2
    partition.close()
    patient.close()


def test_a_disk_that_fails_is_named(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = house.streamed()

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(StreamError, match=r"Layer '.+' cannot be read from .+ \(Input/output error\)") as caught:
        several(partition, house.images[:1], 3)
    assert caught.value.reason == "weights_unreadable"
    monkeypatch.undo()
    with torch.inference_mode():
        assert same(first(partition, house.images[:1]), house.resident(house.images[:1]))
    partition.close()


@pytest.mark.parametrize("refused", ["open", "preadv"])
def test_without_o_direct_pages_are_given_back_and_it_is_said(
    house: House, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems refuse it as a file is opened, or as it is read."""
    plain, advised = getattr(os, refused), []

    def refuse(file: Any, *given: Any, **options: Any) -> Any:
        if (given[0] if refused == "open" else fcntl.fcntl(file, fcntl.F_GETFL)) & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return plain(file, *given, **options)

    monkeypatch.setattr(os, refused, refuse)
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: advised.append(given[3]))
    partition = house.streamed()
    with torch.inference_mode():
        assert same(first(partition, house.images[:1]), house.resident(house.images[:1]))
    assert "without O_DIRECT" in partition.note
    assert set(advised) == {os.POSIX_FADV_DONTNEED}
    partition.close()


def test_a_layout_that_this_machine_would_not_make_is_refused(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a layout means is never taken from the file."""
    if not house.contents().forms:
        pytest.skip("this build of torch has no oneDNN layouts")
    odd = next(iter(house.contents().forms.values()))
    monkeypatch.setattr(contents_module.blocked_weights, "form_of", lambda *_: odd)
    with pytest.raises(WeightsError, match="another layout than this machine's"):
        house.contents()


def test_layouts_are_compared_with_those_for_the_threads_that_will_run(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not house.contents().forms:
        pytest.skip("this build of torch has no oneDNN layouts")
    seen, plain = set(), contents_module.blocked_weights.form_of

    def form_of(*given: Any) -> Any:
        seen.add(torch.get_num_threads())
        return plain(*given)

    monkeypatch.setattr(contents_module.blocked_weights, "form_of", form_of)
    torch.set_num_threads(2)
    try:
        house.contents()
    finally:
        torch.set_num_threads(1)
    assert seen == {1}
