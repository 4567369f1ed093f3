"""The ways of weights to a device that works behind, played by the CPU: it is done when its marks are waited for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from odd_model import House
from torch import Tensor

from split_infer_ros.errors import StreamError
from split_infer_ros.layering.contents import open_contents
from split_infer_ros.layering.device_stages import CopyStage, MappedStage, Processor
from split_infer_ros.layering.home import Home, page_aligned
from split_infer_ros.layering.pack import pack_model
from split_infer_ros.layering.residency import ASYNCHRONOUS, SYNCHRONOUS, TWO_STAGE, place
from split_infer_ros.layering.ring import CHUNK, RingPlan, circular
from split_infer_ros.layering.streamed import StreamedHalf
from split_infer_ros.layering.track import Track
from split_infer_ros.layering.weights_file import Block, WeightsFile


class Played:
    """A mark that counts how often it is waited for."""

    waited = 0

    def wait(self) -> None:
        Played.waited += 1


def copy(into: Tensor, source: Tensor) -> None:
    into.copy_(source)


PROCESSOR = Processor(copy, Played)


class PlayedHome(Home):
    """Two rings, or one that both sides see."""

    def __init__(self, capacity: int, copied: bool) -> None:
        super().__init__(page_aligned(capacity), page_aligned(capacity) if copied else None)
        self._copied = copied

    def stage(
        self, file: WeightsFile, plan: RingPlan, blocks: Sequence[Block], stall_s: float
    ) -> MappedStage | CopyStage:
        if not self._copied:
            return MappedStage(Track(self._reader, file, plan, blocks, stall_s), PROCESSOR)
        sizes = [block.nbytes for block in blocks]
        source = circular(sizes, range(len(blocks)), len(self._host))

        def slices(ring: Tensor, offsets: Sequence[int]) -> list[Tensor]:
            return [ring[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]

        rings = slices(self._host, source.offsets), slices(self.ring, plan.offsets)
        return CopyStage(Track(self._reader, file, source, blocks, stall_s), *rings, plan, PROCESSOR)


@pytest.fixture(scope="module")
def plain(house: House) -> House:
    """The file as a GPU has it."""
    path = house.path.with_name("gpu.weights")
    pack_model(house.model, path, None, tile_mb=0.05)
    return House(house.model, path, house.images)


def streamed(plain: House, residency: str, copied: bool) -> StreamedHalf:
    contents = open_contents(plain.model, plain.model.graph, plain.path, None)
    chunk = max(contents.sizes) if copied else CHUNK
    plan = place(residency, contents.sizes, contents.uses, chunk=chunk).plan
    return StreamedHalf(contents, plan, home=PlayedHome(plan.capacity, copied))


@pytest.mark.parametrize(
    ("residency", "copied"), [(TWO_STAGE, False), (TWO_STAGE, True), (ASYNCHRONOUS, True), (SYNCHRONOUS, True)]
)
def test_a_device_gets_what_the_layers_need(plain: House, residency: str, copied: bool) -> None:
    half = streamed(plain, residency, copied)
    before = Played.waited
    with torch.inference_mode():
        for image in [*plain.images, *plain.images]:
            found = half(image[None])
            expected = plain.model.graph(image[None])
            torch.testing.assert_close(found if isinstance(found, Tensor) else found[0], expected, rtol=1e-5, atol=1e-5)
    assert Played.waited > before
    half.close()


@pytest.mark.parametrize("copied", [False, True])
def test_a_failed_pass_is_followed_by_a_sound_one(
    plain: House, copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = streamed(plain, TWO_STAGE, copied)
    read = WeightsFile.read

    def fail(self: WeightsFile, offset: int, into: memoryview, layer: str) -> None:
        raise StreamError("weights_unreadable", f"Layer '{layer}' cannot be read.")

    with torch.inference_mode():
        expected = half(plain.images[:1])
        monkeypatch.setattr(WeightsFile, "read", fail)
        failures = 0
        for _ in range(5):
            try:
                half(plain.images[:1])
            except StreamError:
                failures += 1
        assert failures >= 3
        monkeypatch.setattr(WeightsFile, "read", read)
        for _ in range(3):  # what was read ahead may fail once more
            try:
                found = half(plain.images[:1])
            except StreamError:
                continue
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    half.close()
