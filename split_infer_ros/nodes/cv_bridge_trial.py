"""Has cv_bridge convert one image, in a process of its own that it may end."""

from __future__ import annotations

import sys

from sensor_msgs.msg import Image

SIZE = 16  # of the black image, in pixels


def main() -> int:
    """Converts an image to colours. Arguments are its encoding and the bytes of a pixel."""
    from cv_bridge import CvBridge

    encoding, step = sys.argv[1], SIZE * int(sys.argv[2])
    image = Image(height=SIZE, width=SIZE, encoding=encoding, step=step, data=bytes(SIZE * step))
    CvBridge().imgmsg_to_cv2(image, "rgb8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
