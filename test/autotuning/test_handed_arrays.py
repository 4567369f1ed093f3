"""Arrays reach another process through memory that has no name on a disk."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from split_infer_ros.autotuning.handed_arrays import handed, taken

IMAGES = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
READ = """
import json, sys
from split_infer_ros.autotuning.handed_arrays import taken
print(taken(json.loads(sys.argv[1])).tolist())
"""


def test_another_process_reads_the_same_values() -> None:
    with handed(IMAGES) as description:
        found = subprocess.run(
            [sys.executable, "-c", READ, json.dumps(description)], capture_output=True, text=True, check=True
        )
    assert json.loads(found.stdout) == IMAGES.tolist()


def test_the_memory_is_gone_afterwards() -> None:
    with handed(IMAGES[:, ::2]) as description:
        np.testing.assert_array_equal(taken(description), IMAGES[:, ::2])
    with pytest.raises(OSError, match="No such file"):
        taken(description)
