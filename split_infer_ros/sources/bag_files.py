"""Opens bags that the package ``rosbags`` alone cannot read: unfinished or compressed, or without metadata."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from split_infer_ros.errors import SourceError
from split_infer_ros.runtime.user_files import exists, is_folder, is_regular
from split_infer_ros.sources.unfinished_mcap import UnfinishedMcap, ends_early

STORAGES = (".mcap", ".db3")
COMPRESSED = (".zstd", ".zst")
METADATA = "metadata.yaml"
MAX_MESSAGE_BYTES = 2**29  # twice the bytes of an 8K image with four channels of 16 bits

_ZSTD = b"\x28\xb5\x2f\xfd"  # zstd data begins with this; no plain message does: the first byte of CDR is 0


def storage_of(path: Path, warn: Callable[[str], None] | None) -> Any:
    """Returns what the reader of ``rosbags`` can open in place of a path.

    Args:
        path: the bag's path.
        warn: called with a sentence if the bag is not complete.

    Returns:
        The path itself, the only file of a folder without metadata, or an ``UnfinishedMcap``.

    Raises:
        SourceError: the bag does not exist, or it cannot be read as it is. The sentence says how to make it readable.
    """
    if not exists(path):
        raise SourceError(f"The bag {path} does not exist; bag:PATH takes a bag's folder or an .mcap file.")
    if path.suffix in COMPRESSED and is_regular(path):
        raise SourceError(
            f"{path} is one compressed file of a bag; bag:PATH takes the folder with its {METADATA}, or the file after "
            f"'zstd -d {path.name}'."
        )
    try:
        if is_folder(path):
            path = _file_of(path)
        if path.suffix != ".mcap" or not is_regular(path) or not ends_early(path):
            return path
        storage = UnfinishedMcap(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read ({error}).") from error
    if warn is not None:
        warn(
            f"{path} is not finished, so it is read as far as it goes, without its last {storage.lost_bytes:,} bytes; "
            f"'mcap recover {path.name} -o NEW.mcap' finishes it."
        )
    return storage


def decompressed(content: bytes) -> bytes:
    """Returns a message's bytes, decompressed if zstd has compressed them.

    The reader of ``rosbags`` decompresses messages only if the bag's metadata mention compression.

    Raises:
        ValueError: the message is damaged, or too large.
    """
    if not content.startswith(_ZSTD):
        return content
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    decompressor = zstd.ZstdDecompressor()
    message = bytes(decompressor.decompress(content, MAX_MESSAGE_BYTES))
    if not decompressor.eof:
        raise ValueError(f"compressed, it is damaged or has more than {MAX_MESSAGE_BYTES:,} bytes")
    return message


def _file_of(folder: Path) -> Path:
    """Returns a bag's folder, or its only file if the recorder did not finish the bag.

    Raises:
        SourceError: the bag has several files, and one is not finished or the metadata is missing.
        OSError: a file cannot be read.
    """
    files = sorted(file for file in folder.iterdir() if file.suffix in STORAGES)
    unfinished = [file for file in files if file.suffix == ".mcap" and ends_early(file)]
    has_metadata = (folder / METADATA).exists()
    if not files or (has_metadata and not unfinished):
        return folder
    if len(files) == 1:
        return files[0]
    if unfinished:
        cause = f"{unfinished[0].name} is not finished; 'mcap recover' finishes it"
    else:
        cause = f"it has {len(files)} files and no {METADATA}"
    raise SourceError(
        f"The bag {folder} cannot be read as a whole: {cause}. 'ros2 bag reindex {folder}' then writes {METADATA}, and "
        "bag:PATH also takes one of the files."
    )
