"""Reading a packed file: past the page cache, whose copy would be a second one, and holding no GIL."""

from __future__ import annotations

import errno
import mmap
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import StreamError, WeightsError
from split_infer_ros.weight_streaming.packed_file import PAGE, Piece


@dataclass(frozen=True, slots=True)
class Block:
    """What is read into one place: pieces that follow each other in the file."""

    pieces: tuple[Piece, ...]

    @property
    def offset(self) -> int:
        """In the file."""
        return self.pieces[0].offset

    @property
    def nbytes(self) -> int:
        """Of all its pieces."""
        return sum(piece.nbytes for piece in self.pieces)


class WeightsFile:
    """An open file of weights.

    Args:
        path: of the file.
        direct: whether to try O_DIRECT.

    Attributes:
        note: a sentence where reads go through the page cache; empty where they do not.
    """

    def __init__(self, path: Path, direct: bool = True) -> None:
        self.path = path
        self.note = ""
        try:
            self._descriptor, self._direct = _open(path, direct)
        except OSError as error:
            raise WeightsError(f"{path} cannot be read ({error.strerror}).") from error
        if not self._direct:
            self.note = (
                f"{path} lies on a file system without O_DIRECT: weights are read through the page cache, "
                "whose pages are given back after each read."
            )

    def read(self, offset: int, into: memoryview, layer: str) -> None:
        """Fill page-aligned memory with what lies at a page of the file.

        Raises:
            StreamError: the file ends before, or the disk fails; the layer is named.
        """
        done = 0
        try:
            while done < len(into):
                count = os.preadv(self._descriptor, [into[done:]], offset + done)
                done += count
                if not count or done % PAGE:  # what is read ends with a page, unless the file ends before
                    raise StreamError(
                        DropReason.WEIGHTS_TRUNCATED, f"{self.path} ends within layer '{layer}': it was cut short."
                    )
        except OSError as error:
            raise StreamError(
                DropReason.WEIGHTS_UNREADABLE, f"Layer '{layer}' cannot be read from {self.path} ({error.strerror})."
            ) from error
        if not self._direct:
            os.posix_fadvise(self._descriptor, offset, len(into), os.POSIX_FADV_DONTNEED)

    def check(self, block: Block, memory: memoryview) -> None:
        """Compare what was read with its checksums.

        Raises:
            StreamError: a layer is not as it was written.
        """
        for piece in block.pieces:
            start = piece.offset - block.offset
            if zlib.crc32(memory[start : start + piece.nbytes]) != piece.crc32:
                raise StreamError(
                    DropReason.WEIGHTS_DAMAGED,
                    f"Layer '{piece.layer}' is not as it was written to {self.path}: pack it again.",
                )

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _open(path: Path, direct: bool) -> tuple[int, bool]:
    """A descriptor, and whether it reads past the page cache; some file systems refuse at opening, some at reading."""
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
