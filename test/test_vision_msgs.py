"""The vision_msgs in use, ours or ROS's own, is upstream's on the wire: the type hashes are equal."""

import json
import os
from pathlib import Path

import pytest

HASHES = {
    "Point2D": "eab0e83f44ab4de92ceaf76dd7d0e7638f2bdd1d16ffbe16c7a136c48e407247",
    "Pose2D": "b0b5d1d7b4c20dd4fcde3ed1d4b289a919290572007d67a97043814db25d3648",
    "BoundingBox2D": "008eacbb0cf8f26e83795547bed013eec3675485ef386ec056d80eaaf1c1ce2f",
    "ObjectHypothesis": "51da43cec11c01957a64d1e05a24acd18aae7745ec30b74348ad5f6d634f7f90",
    "ObjectHypothesisWithPose": "41c12344c0396c48b81df12467c192d99b2a0eb1463c5c37194e4223251c80bc",
    "Detection2D": "0d12b69df5c593b3455b7346fac8205437a7d4bcb09b9e0e0b2dde787ded38ea",
    "Detection2DArray": "214274120007f4a683866481336b70310268cfa107aebe9d594a6acf75bda968",
    "BoundingBox3D": "bbb73a65c163d7f9bb29009c7bde9f7faa576bd2d23299c4511d19230dab4698",
    "Detection3D": "ddd703be132ab0b69d33121f1bb034132bfbb3b0ac5f9fb1516005ba1c8a265b",
    "Detection3DArray": "793f5eab9595ac1c0da07873cc859db42eae51f0ee76056db8562515d830e018",
    "VisionInfo": "95d3116a17484ad91c9a2686e1d54890bbfc3ff6c6a2de137738c4950d45d284",
}


@pytest.fixture(scope="module")
def share() -> Path:
    """The folder share/vision_msgs of the first prefix that has one."""
    for prefix in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep):
        folder = Path(prefix, "share/vision_msgs")
        if prefix and folder.is_dir():
            return folder
    pytest.skip("vision_msgs is not on AMENT_PREFIX_PATH")


@pytest.mark.parametrize("name", HASHES)
def test_type_hash_is_upstream_s(share: Path, name: str) -> None:
    description = json.loads((share / f"msg/{name}.json").read_text())
    hashes = {entry["type_name"]: entry["hash_string"] for entry in description["type_hashes"]}
    assert hashes[f"vision_msgs/msg/{name}"] == f"RIHS01_{HASHES[name]}"
