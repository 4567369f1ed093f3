"""Streamed partitions give the results of resident ones, and failures are named."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from all_layers_model import PackedModel
from comparisons import rounding
from networks import graph_of, network_of

from split_infer_ros.errors import ConfigurationError, StreamError, WeightsError
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.split.torch_network import TorchNetwork
from split_infer_ros.split.weightless_network import weightless_network
from split_infer_ros.torch_graphs.module_state import state_of
from split_infer_ros.weight_streaming import packed_partition
from split_infer_ros.weight_streaming.chunk_reader import ChunkReader
from split_infer_ros.weight_streaming.pack import pack_model
from split_infer_ros.weight_streaming.packed_file import read_header
from split_infer_ros.weight_streaming.packed_header import Piece
from split_infer_ros.weight_streaming.packed_partition import open_packed
from split_infer_ros.weight_streaming.prefetcher import WeightPrefetcher
from split_infer_ros.weight_streaming.residency import Residency, plan_memory, plan_resident_blocks
from split_infer_ros.weight_streaming.ring_plan import min_capacity
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition
from split_infer_ros.weight_streaming.unpack import unpack_weights
from split_infer_ros.weight_streaming.weights_file import WeightsFile

pytestmark = pytest.mark.numeric


def piece_of(packed_model: PackedModel, layer: str) -> Piece:
    return next(piece for piece in read_header(packed_model.path).pieces if piece.layer == layer)


def damage(packed_model: PackedModel, piece: Piece) -> bytes:
    """Flips a bit of a piece. Returns the byte as it was."""
    with packed_model.path.open("r+b") as file:
        file.seek(piece.offset)
        old = file.read(1)
        file.seek(piece.offset)
        file.write(bytes([old[0] ^ 64]))
    return old


def run_passes(partition: StreamedPartition, images: torch.Tensor, passes: int) -> None:
    for _ in range(passes):
        run_once(partition, images)


def run_once(partition: StreamedPartition, images: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        (logits,) = partition(images)
    return logits


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Compares up to rounding: a tile of rows uses another kernel than the whole layer."""
    return rounding(found, expected) <= 1e-5


@pytest.mark.parametrize(
    ("residency", "passes"),
    [
        (Residency.SYNCHRONOUS, 40),
        (Residency.ASYNCHRONOUS, 40),
        (Residency.TWO_STAGE, 40),
        pytest.param(Residency.ASYNCHRONOUS, 1000, marks=pytest.mark.slow),
    ],
)
def test_many_passes_give_the_results_of_resident_weights(
    packed_model: PackedModel, residency: Residency, passes: int
) -> None:
    """Each pass runs on another image than the one before."""
    with torch.inference_mode():
        expected = [packed_model.resident(image[None]) for image in packed_model.images]
    partition = packed_model.streamed(residency)
    first_results = [run_once(partition, image[None]) for image in packed_model.images]
    assert all(same(found, wanted) for found, wanted in zip(first_results, expected, strict=True))
    for index in range(passes):
        assert torch.equal(run_once(partition, packed_model.images[index % 8][None]), first_results[index % 8])
    stats = partition.stats()
    assert stats.passes == passes + 8
    assert stats.bytes_read >= stats.passes * sum(packed_model.packed().block_sizes)
    assert partition.times is not None
    assert len(partition.times.step_s) == len(packed_model.packed().step_blocks)
    partition.close()


def test_untiled_weights_give_the_same_bits(packed_model: PackedModel, tmp_path: Path) -> None:
    """The file has the layouts to which oneDNN converts resident weights for the same kernel."""
    whole = PackedModel(packed_model.model, tmp_path / "whole.weights", packed_model.images)
    header = pack_model(network_of(packed_model.model), whole.path, num_threads=1)
    assert len(header.pieces) == len({piece.layer for piece in header.pieces})
    partition = whole.streamed(Residency.TWO_STAGE)
    for image in packed_model.images:
        with torch.inference_mode():
            assert torch.equal(run_once(partition, image[None]), packed_model.resident(image[None]))
    partition.close()


def test_head_partition_streams_as_well(packed_model: PackedModel) -> None:
    packed = packed_model.packed(head=True)
    memory_plan = plan_memory(Residency.TWO_STAGE, packed.block_sizes, packed.step_blocks)
    partition = StreamedPartition.open(packed, memory_plan)
    with torch.inference_mode():
        features = packed_model.model.backbone("default")(packed_model.images[:1])
        (found,), (expected,) = partition(*features), packed_model.model.head("default")(*features)
    assert same(found, expected)
    partition.close()


def test_calls_of_a_shared_layer_follow_each_other(packed_model: PackedModel) -> None:
    """The weights of a shared layer are not needed beyond the layers after it."""
    packed = packed_model.packed()
    assert [piece.row for piece in packed.pieces["wide"]] == [0, 16, 32, 48]
    assert min_capacity(packed.block_sizes, packed.step_blocks) == max(packed.block_sizes)
    names = [call.layer.name for call in packed.calls]
    assert [names.count(name) for name in ("shared.0", "shared.2")] == [2, 2]
    assert all(names[names.index(name) + 1] == name for name in ("shared.0", "shared.2"))


def test_first_layers_can_stay_in_memory(packed_model: PackedModel) -> None:
    packed = packed_model.packed()
    largest = max(packed.block_sizes)
    memory_plan = plan_resident_blocks(
        packed.block_sizes,
        packed.step_blocks,
        memory_bytes=sum(packed.block_sizes) - largest,
        capacity=2 * largest,
    )
    assert memory_plan is not None
    assert memory_plan.resident_blocks
    partition = StreamedPartition.open(packed, memory_plan)
    with torch.inference_mode():
        assert same(run_once(partition, packed_model.images[:1]), packed_model.resident(packed_model.images[:1]))
    partition.close()
    assert partition.stats().bytes_read < 3 * sum(packed.block_sizes)


def test_unpacked_weights_are_those_that_were_packed(packed_model: PackedModel) -> None:
    state = state_of(graph_of(packed_model.model))
    found = unpack_weights(network_of(packed_model.model), packed_model.path, num_threads=1, names=state.keys())
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], state[name]) for name in state)


def test_weightless_model_has_the_split_points_of_a_whole_one() -> None:
    weightless = weightless_network(find_model("shapes"))
    whole = TorchNetwork(weightless.entry, weightless.entry.build().eval())
    assert (weightless.split_points, weightless.fingerprint) == (whole.split_points, whole.fingerprint)


def test_file_of_another_model_or_machine_is_refused(packed_model: PackedModel) -> None:
    other = weightless_network(find_model("shapes"))
    with pytest.raises(WeightsError, match=r"holds the weights of odd .* not of shapes"):
        open_packed(other, other.graph.module, packed_model.path, num_threads=1)
    with pytest.raises(WeightsError, match="another machine"):
        open_packed(network_of(packed_model.model), graph_of(packed_model.model), packed_model.path, num_threads=7)


def test_error_for_a_small_budget_names_the_needed_one(packed_model: PackedModel) -> None:
    packed = packed_model.packed()
    with pytest.raises(ConfigurationError, match=r"needs a weights_budget_mb of 0\.\d for this model, not 0\.01"):
        plan_memory(Residency.TWO_STAGE, packed.block_sizes, packed.step_blocks, budget_bytes=10_000)


@pytest.mark.parametrize("layer", ["stem.0", "last"])
def test_damaged_layer_is_named_until_it_is_repaired(copied_model: PackedModel, layer: str) -> None:
    piece = piece_of(copied_model, layer)
    old = damage(copied_model, piece)
    partition = copied_model.streamed()
    for _ in range(2):
        with pytest.raises(StreamError, match=f"Layer '{layer}' differs from what was written") as caught:
            run_once(partition, copied_model.images[:1])
        assert caught.value.reason == "weights_damaged"
    with copied_model.path.open("r+b") as file:
        file.seek(piece.offset)
        file.write(old)
    for _ in range(3):  # weights that were read before the repair may fail once more
        try:
            found = run_once(partition, copied_model.images[:1])
        except StreamError:
            continue
    with torch.inference_mode():
        assert same(found, copied_model.resident(copied_model.images[:1]))
    partition.close()


def test_later_damage_is_found_within_some_passes(copied_model: PackedModel) -> None:
    partition = copied_model.streamed()
    run_once(partition, copied_model.images[:1])
    damage(copied_model, piece_of(copied_model, "last"))
    with pytest.raises(StreamError, match="last"):
        run_passes(partition, copied_model.images[:1], 3 * len(copied_model.packed().blocks))
    partition.close()


@pytest.mark.parametrize("kept_bytes", [4096, 5000])
def test_file_truncated_while_read_fails_its_pass(
    copied_model: PackedModel, kept_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may end within a page. A disk with O_DIRECT cannot continue to read there."""
    plain = os.preadv

    def preadv(file: int, buffers: Any, offset: int) -> int:
        if offset % 4096:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return plain(file, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    partition = copied_model.streamed()
    whole = copied_model.path.read_bytes()
    run_once(partition, copied_model.images[:1])
    os.truncate(copied_model.path, piece_of(copied_model, "wide").offset + kept_bytes)
    with pytest.raises(StreamError, match="ends within layer") as caught:
        run_passes(partition, copied_model.images[:1], 3)
    assert caught.value.reason == "weights_truncated"
    copied_model.path.write_bytes(whole)
    for _ in range(3):
        try:
            found = run_once(partition, copied_model.images[:1])
        except StreamError:
            continue
    with torch.inference_mode():
        assert same(found, copied_model.resident(copied_model.images[:1]))
    partition.close()


def test_stalled_disk_ends_the_wait_and_keeps_the_ring_sound(
    packed_model: PackedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read, plain = threading.Event(), WeightsFile.read
    may_read.set()

    def read(self: WeightsFile, offset: int, memory: memoryview, layer: str) -> None:
        assert may_read.wait(60)
        plain(self, offset, memory, layer)

    monkeypatch.setattr(WeightsFile, "read", read)
    partition = packed_model.streamed(Residency.TWO_STAGE)
    run_once(partition, packed_model.images[:1])
    wait_for = WeightPrefetcher.wait_for

    def wait_briefly(self: WeightPrefetcher, reader: ChunkReader, count: int, timeout_s: float) -> None:
        wait_for(self, reader, count, 0.1)

    may_read.clear()
    with monkeypatch.context() as patch:
        patch.setattr(WeightPrefetcher, "wait_for", wait_briefly)  # not earlier: a busy machine may hold up a good pass
        for _ in range(2):
            with pytest.raises(StreamError, match=r"did not deliver layer '.+' within 0\.1 s") as caught:
                run_passes(partition, packed_model.images[:1], 2)
    assert caught.value.reason == "weights_stalled"
    may_read.set()
    patient = packed_model.streamed(Residency.TWO_STAGE)
    for _ in range(100):  # until the disk has caught up
        try:
            found = run_once(partition, packed_model.images[1:2])
            break
        except StreamError:
            continue
    assert torch.equal(found, run_once(patient, packed_model.images[1:2]))  # another partition from the same file
    assert partition.stats().stalled_s >= 0.2
    partition.close()
    patient.close()


def test_error_of_the_disk_names_layer_and_file(packed_model: PackedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = packed_model.streamed()

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(StreamError, match=r"Layer '.+' cannot be read from .+ \(Input/output error\)") as caught:
        run_passes(partition, packed_model.images[:1], 3)
    assert caught.value.reason == "weights_unreadable"
    monkeypatch.undo()
    with torch.inference_mode():
        assert same(run_once(partition, packed_model.images[:1]), packed_model.resident(packed_model.images[:1]))
    partition.close()


@pytest.mark.parametrize("refused", ["open", "preadv"])
def test_without_o_direct_cached_pages_are_dropped_with_a_note(
    packed_model: PackedModel, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems refuse O_DIRECT when a file is opened, others when it is read."""
    plain, advised = getattr(os, refused), []

    def refuse(file: Any, *given: Any, **options: Any) -> Any:
        if (given[0] if refused == "open" else fcntl.fcntl(file, fcntl.F_GETFL)) & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return plain(file, *given, **options)

    monkeypatch.setattr(os, refused, refuse)
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: advised.append(given[3]))
    partition = packed_model.streamed()
    with torch.inference_mode():
        assert same(run_once(partition, packed_model.images[:1]), packed_model.resident(packed_model.images[:1]))
    assert "without O_DIRECT" in partition.note
    assert set(advised) == {os.POSIX_FADV_DONTNEED}
    partition.close()


def test_foreign_layout_is_refused(packed_model: PackedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout's meaning is never taken from the file."""
    if not packed_model.packed().layouts:
        pytest.skip("this build of torch has no oneDNN layouts")
    odd = next(iter(packed_model.packed().layouts.values()))
    monkeypatch.setattr(packed_partition.blocked_weights, "layout_for", lambda *_: odd)
    with pytest.raises(WeightsError, match="another layout than this machine's"):
        packed_model.packed()


def test_layouts_are_checked_with_the_given_threads(packed_model: PackedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    if not packed_model.packed().layouts:
        pytest.skip("this build of torch has no oneDNN layouts")
    seen, plain = set(), packed_partition.blocked_weights.layout_for

    def layout_for(*given: Any) -> Any:
        seen.add(torch.get_num_threads())
        return plain(*given)

    monkeypatch.setattr(packed_partition.blocked_weights, "layout_for", layout_for)
    torch.set_num_threads(2)
    try:
        packed_model.packed()
    finally:
        torch.set_num_threads(1)
    assert seen == {1}
