"""Reads packed weights without the GIL and past the page cache, which would hold a second copy."""

from __future__ import annotations

import errno
import mmap
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import StreamError, WeightsError
from split_infer_ros.weight_streaming.packed_header import PAGE, Piece


@dataclass(frozen=True, slots=True)
class Block:
    """Pieces that follow each other in a packed file. They are read together, into one place of memory."""

    pieces: tuple[Piece, ...]

    @property
    def offset(self) -> int:
        """Offset of the first piece in the file, in bytes."""
        return self.pieces[0].offset

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.nbytes for piece in self.pieces)


class WeightsFile:
    """An open file of packed weights. Use ``open`` to create one.

    Attributes:
        path: the file's path.
        note: a sentence if reads go through the page cache, else empty.
    """

    def __init__(self, path: Path, descriptor: int, is_direct: bool) -> None:
        self.path = path
        self.note = ""
        self._descriptor = descriptor
        self._is_direct = is_direct
        if not is_direct:
            self.note = (
                f"{path} lies on a file system without O_DIRECT: weights are read through the page cache, "
                "whose pages are given back after each read."
            )

    @classmethod
    def open(cls, path: Path, direct: bool = True) -> WeightsFile:
        """Opens a file of packed weights for reading.

        Args:
            path: the file's path.
            direct: whether to try O_DIRECT, which reads past the page cache.

        Raises:
            WeightsError: the file cannot be read.
        """
        try:
            descriptor, is_direct = _open(path, direct)
        except OSError as error:
            raise WeightsError(f"{path} cannot be read ({error.strerror}).") from error
        return cls(path, descriptor, is_direct)

    def read(self, offset: int, memory: memoryview, layer: str) -> None:
        """Fills page-aligned memory with bytes of the file.

        Args:
            offset: offset in the file, in bytes; the start of a page.
            memory: the memory to fill, of whole pages.
            layer: the layer's name, for errors.

        Raises:
            StreamError: the file ends too early, or the disk fails.
        """
        done = 0
        try:
            while done < len(memory):
                count = os.preadv(self._descriptor, [memory[done:]], offset + done)
                done += count
                if not count or done % PAGE:  # a read ends within a page only at the end of the file
                    raise StreamError(
                        DropReason.WEIGHTS_TRUNCATED, f"{self.path} ends within layer '{layer}': it was truncated."
                    )
        except OSError as error:
            raise StreamError(
                DropReason.WEIGHTS_UNREADABLE, f"Layer '{layer}' cannot be read from {self.path} ({error.strerror})."
            ) from error
        if not self._is_direct:
            os.posix_fadvise(self._descriptor, offset, len(memory), os.POSIX_FADV_DONTNEED)

    def check(self, block: Block, memory: memoryview) -> None:
        """Compares a block in memory with the checksums of its pieces.

        Args:
            block: the block.
            memory: the bytes that were read for the block.

        Raises:
            StreamError: a layer's bytes differ from those that were written to the file.
        """
        for piece in block.pieces:
            start = piece.offset - block.offset
            if zlib.crc32(memory[start : start + piece.nbytes]) != piece.crc32:
                raise StreamError(
                    DropReason.WEIGHTS_DAMAGED,
                    f"Layer '{piece.layer}' differs from what was written to {self.path}: pack it again.",
                )

    def load(self, blocks: Iterable[Block], memory: memoryview) -> None:
        """Reads blocks into memory, one behind the other, and compares them with their checksums.

        Args:
            blocks: the blocks.
            memory: page-aligned memory with room for all blocks.

        Raises:
            StreamError: blocks cannot be read, or differ from what was written.
        """
        start = 0
        for block in blocks:
            place = memory[start : start + block.nbytes]
            self.read(block.offset, place, block.pieces[0].layer)
            self.check(block, place)
            start += block.nbytes

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


def _open(path: Path, direct: bool) -> tuple[int, bool]:
    """Returns a file descriptor, and whether reads with it go past the page cache.

    Some file systems refuse O_DIRECT when a file is opened, others when it is read.
    """
    plain = os.O_RDONLY | os.O_CLOEXEC
    if not direct:
        return os.open(path, plain), False
    descriptor = -1
    try:
        descriptor = os.open(path, plain | os.O_DIRECT)
        os.preadv(descriptor, [mmap.mmap(-1, PAGE)], 0)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, plain), False
    return descriptor, True
