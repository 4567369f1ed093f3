"""What a tenant and the shared settings accept."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.onnx_options import OnnxOptions
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant, check_unique_names


@pytest.mark.parametrize("name", ["7", "a b", "a.b", "a/b", "a__b", "_a", "a_"])
def test_name_is_part_of_topics_and_parameters(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot be named '{name}'"):
        Tenant(name, "shapes")
    assert Tenant("front_2", "shapes").name == "front_2"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"deadline_s": -1.0}, "tenant.a.deadline_s cannot be -1.0; it takes a number from 0 to 60"),
        ({"deadline_s": math.nan}, "deadline_s cannot be nan"),
        ({"deadline_s": math.inf}, "deadline_s cannot be inf"),
        ({"priority": 17}, "priority cannot be 17; it takes a whole number from -16 to 16"),
        ({"when_late": "cry"}, "it takes one of: LatePolicy.FINISH, LatePolicy.DROP"),
    ],
)
def test_wrong_value_is_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        replace(Tenant("a", "shapes"), **change)  # type: ignore[arg-type]


def test_tenants_share_a_model_of_the_same_weights() -> None:
    keys = {Tenant("a", "shapes", weights).model_key for weights in ("default", "none", "default")}
    assert keys == {"shapes", "shapes with weights none"}


def test_tenants_with_own_heads_share_no_key() -> None:
    tenants = [Tenant(name, "shapes", "none", own_head=True) for name in ("a", "b")]
    assert [tenant.model_key for tenant in tenants] == [f"shapes with weights none for {name}" for name in ("a", "b")]


def test_tenants_with_other_options_do_not_share_a_model() -> None:
    tenants = [
        Tenant("a", "m.onnx", onnx_options=options)
        for options in (OnnxOptions(), OnnxOptions(decoder="yolov8"), OnnxOptions(labels="yolov8"), OnnxOptions())
    ]
    assert len({tenant.model_key for tenant in tenants}) == 3
    assert tenants[1].model_key == "m.onnx with decoder yolov8"


def test_duplicate_name_is_refused() -> None:
    check_unique_names([Tenant("a", "shapes"), Tenant("b", "shapes")])
    with pytest.raises(ConfigurationError, match="listed twice: a;"):
        check_unique_names([Tenant("a", "shapes"), Tenant("a", "resnet18"), Tenant("b", "shapes")])


def test_only_live_settings_may_change() -> None:
    settings = SharedSettings()
    settings.check_change(
        replace(settings, window=8, batch_size=2, max_waiting=1, pool_slots=3, memory_policy="pinned")
    )
    with pytest.raises(ConfigurationError, match="graph_bytes, precision cannot change"):
        settings.check_change(replace(settings, window=8, precision="fp16", graph_bytes=1))
    with pytest.raises(ConfigurationError, match="max_waiting cannot be 0; it takes a whole number from 1 to 1000"):
        replace(settings, max_waiting=0)
