"""A process that keeps a processor busy, until it is killed or its parent has ended.

It inherits its processor from the thread that starts it. Arguments: the parent's process number, and the nice value.
"""

from __future__ import annotations

import os
import sys

SPINS = 1_000_000  # between two looks at the parent; about 20 ms


def main() -> int:
    """Computes. Prints a line once it begins."""
    parent, nice = int(sys.argv[1]), int(sys.argv[2])
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    print("begins", flush=True)
    while os.getppid() == parent:
        for _ in range(SPINS):
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
