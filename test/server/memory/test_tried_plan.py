"""The memory that each of several models may take."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from brightness_models import BrightModel

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.server.memory.tried_plan import check_room_for_weights


def test_only_weights_before_the_split_point_must_fit_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    model = BrightModel("one", idle=1000)
    found = [model.network.num_parameters(split_point) for split_point in ("input", "default", "output")]
    assert found == [0, 12, 1012]
    assert model.network.num_parameters() == 1012
    there = SimpleNamespace(device=torch.device("cuda:0"), dtype=model.dtype, network=model.network)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (12 * 4, 10**9))
    check_room_for_weights("one", [there], "default")  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match=r"The weights of one before its split point take .* would fit"):
        check_room_for_weights("one", [there], "output")  # type: ignore[list-item]
