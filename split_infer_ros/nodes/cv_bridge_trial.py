"""Lets cv_bridge convert one image in a process of its own. If cv_bridge crashes, only that process ends."""

from __future__ import annotations

import sys

from sensor_msgs.msg import Image

SIZE = 16  # width and height of the black image, in pixels


def main() -> int:
    """Lets cv_bridge convert a black image to colours. Returns 0, or raises what cv_bridge raises.

    The process's arguments are the encoding's name and its bytes per pixel.
    """
    from cv_bridge import CvBridge

    encoding, step = sys.argv[1], SIZE * int(sys.argv[2])
    image = Image(height=SIZE, width=SIZE, encoding=encoding, step=step, data=bytes(SIZE * step))
    CvBridge().imgmsg_to_cv2(image, "rgb8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
