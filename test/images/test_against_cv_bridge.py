"""Our decoders and cv_bridge's give the same colours for every encoding that both know.

Which equality is due:

- Colours and greys of 8 bits are equal: both only reorder bytes.
- Colours and greys of 16 bits are equal: both round v / 257 to the nearest integer, and no v is half-way.
- Bayer mosaics of 8 bits are equal: both take the rounded mean of the same neighbours, in integers.
- Bayer mosaics of 16 bits differ by 1 at most. We round to 8 bits before the mean, cv_bridge after it. Either result
  is less than 1 from the exact mean, and the sum of both distances is less than 2.
- YUV differs by 1 at most: cv_bridge may be linked with an OpenCV that multiplies in another precision.
- Measurements differ by 1 at most. Both scale the same range to 0..255, but round differently half-way.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cv_bridge", reason="test_against_cv_bridge.py needs cv_bridge")

import cv_bridge
from image_messages import NATIVE, message_of, random_samples

from split_infer_ros.images.encodings import BGR, ENCODINGS, read_message
from split_infer_ros.nodes.cv_bridge_encodings import conversion_problem

PROBLEM = conversion_problem("bgr8", 3)
if PROBLEM is not None:
    pytest.skip(f"cv_bridge cannot convert colours here: {PROBLEM}", allow_module_level=True)

SIZES = [(1, 2), (2, 2), (3, 5), (4, 6), (7, 9), (48, 64), (33, 130)]
MEASUREMENTS = ("16UC1", "32FC1")
NUMBERS = ("8UC1", "8UC3", "8UC4")  # cv_bridge has no conversion from them

# core.py of cv_bridge swaps bytes by a method that NumPy 2 has not. There it gets the same values in native order.
SWAPS_BYTES = hasattr(np.ndarray, "newbyteorder")

BRIDGE = cv_bridge.CvBridge()


def knows(encoding: str) -> bool:
    try:
        BRIDGE.encoding_to_dtype_with_channels(encoding)
    except cv_bridge.CvBridgeError:
        return False
    return True


def by_cv_bridge(samples: np.ndarray, encoding: str, padding: int, is_bigendian: bool) -> np.ndarray:
    """Returns cv_bridge's colours as int (height, width, 3), red first."""
    order = is_bigendian if SWAPS_BYTES else NATIVE
    message = message_of(samples, encoding, padding=padding, is_bigendian=order)
    if encoding in MEASUREMENTS:
        passed = BRIDGE.imgmsg_to_cv2(message)
        grey = cv_bridge.cvtColorForDisplay(passed, encoding, "mono8", do_dynamic_scaling=True)
        return np.repeat(grey[..., None], 3, axis=2).astype(int)
    if encoding in NUMBERS:
        passed = BRIDGE.imgmsg_to_cv2(message).reshape(samples.shape)
        return (np.repeat(passed, 3, axis=2) if encoding == "8UC1" else passed[..., list(BGR)]).astype(int)
    return BRIDGE.imgmsg_to_cv2(message, "rgb8").astype(int)


def largest_difference(encoding: str) -> int:
    return int(encoding in MEASUREMENTS or "yuv" in encoding or (encoding.startswith("bayer") and "16" in encoding))


def test_cv_bridge_knows_most_of_our_encodings() -> None:
    assert sum(map(knows, ENCODINGS)) >= 25


@pytest.mark.parametrize("is_bigendian", [False, True], ids=["little", "big"])
@pytest.mark.parametrize("padding", [0, 3], ids=["tight", "padded"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_both_give_the_same_colours(encoding: str, padding: int, is_bigendian: bool) -> None:
    if not knows(encoding):
        pytest.skip(f"cv_bridge does not know {encoding}")
    layout = ENCODINGS[encoding]
    compared = 0
    for height, width in SIZES:
        if min(height, width) < layout.min_side or height % layout.multiple[0] or width % layout.multiple[1]:
            continue  # we refuse these sizes
        samples = random_samples(layout.dtype, height, width, layout.channels)
        # cv_bridge's Python reads a row as a whole number of pixels, so the padding is pixels.
        bytes_after = padding * layout.pixel_bytes
        pixels = read_message(message_of(samples, encoding, padding=bytes_after, is_bigendian=is_bigendian))
        ours = pixels.data[..., list(pixels.rgb)].astype(int)
        theirs = by_cv_bridge(samples, encoding, bytes_after, is_bigendian)
        assert ours.shape == theirs.shape == (height, width, 3)
        assert np.abs(ours - theirs).max() <= largest_difference(encoding), (height, width)
        if height * width > 30:
            assert theirs.std() > 10  # the images are not all of one colour
        compared += 1
    assert compared >= 4
