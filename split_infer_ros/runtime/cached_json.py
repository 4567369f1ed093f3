"""JSON in the user's cache, in files that begin with a digest of their content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from split_infer_ros.runtime.cache import mark_used
from split_infer_ros.runtime.cache_pruning import write_cached
from split_infer_ros.runtime.checked_files import header_of, read_checked


def read_json(path: Path) -> Any:
    """Returns the value in a file, and marks the file as used. None if the file cannot be read or is damaged."""
    mark_used(path)
    try:
        content = read_checked(path)
    except OSError:
        return None
    return None if content is None else json.loads(content)


def write_json(path: Path, value: Any) -> None:
    """Writes a value to a file.

    Raises:
        OSError: the file cannot be written. The old file stays as it was.
    """
    content = json.dumps(value).encode()
    write_cached(path, header_of(content) + content)
