"""The layouts that oneDNN gives to weights of convolutions."""

from __future__ import annotations

import pytest
import torch

from split_infer_ros.weight_streaming import blocked_weights
from split_infer_ros.weight_streaming.blocked_weights import BlockedLayout, layout_for, layout_of, to_blocked

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.skipif(not blocked_weights.is_supported(), reason="this build of torch has no oneDNN layouts"),
]

GEOMETRY = [0, 0], [1, 1], [1, 1], 1
INPUT_SHAPE = 16, 96, 30, 40


def make(channels: int) -> BlockedLayout:
    return layout_for((channels, 96, 1, 1), GEOMETRY, INPUT_SHAPE)


def test_layout_is_identified_by_its_fields_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its fields, oneDNN's descriptor has bytes that differ from process to process."""
    descriptor = bytearray(make(48).descriptor)
    assert len(descriptor) == blocked_weights.DESCRIPTOR_BYTES, "oneDNN describes layouts in another way: PADDING too"
    for begin in blocked_weights.PADDING:
        descriptor[begin : begin + blocked_weights.PADDING_BYTES] = b"\xfc\x7f\x12\x34"
    blocked = to_blocked(torch.zeros(48, 96, 1, 1), GEOMETRY, INPUT_SHAPE)
    changed = torch.frombuffer(descriptor, dtype=torch.uint8)
    monkeypatch.setattr(torch.ops.mkldnn, "_get_mkldnn_serialized_md", lambda _: changed)
    found = layout_of(blocked)
    monkeypatch.undo()
    assert found.digest == make(48).digest
    assert found.digest != make(32).digest
