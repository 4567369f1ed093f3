"""Tenants whose device is lost: each frame has its name, and nobody waits in vain."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from brightness_models import LONG_S, BrightModel
from lost_device import LostDevice, illegal_access
from tenant_server import SETTINGS, A, B, C, Serve, until

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.server import served_model


def test_all_tenants_frames_are_dropped_by_name(serve: Serve) -> None:
    device = LostDevice()
    run = serve(A, B, C, one=BrightModel("one", device=device), two=BrightModel("two", device=device))
    run.send("a", 1)
    run.settled()
    device.left = 0
    for value in range(5):
        for tenant in "abc":
            run.send(tenant, value)
    until(lambda: run.pipeline.view.is_lost)
    run.settled()
    run.send("a", 9)
    for tenant in "abc":
        counts = run.counts(tenant)
        assert counts.dropped == {"device_lost": counts.received - counts.published}
    assert [len(run.delivered[tenant]) for tenant in "abc"] == [1, 0, 0]
    assert len(run.errors) == 1
    assert "illegal memory access" in run.errors[0][1]


def test_a_device_lost_while_costs_are_measured_is_no_hang(serve: Serve) -> None:
    device = LostDevice(left=6)  # enough to load the model, not to measure it
    run = serve(A, one=BrightModel("one", device=device))
    assert run.pipeline.view.is_lost
    run.send("a", 1)
    assert run.counts("a").dropped == {"device_lost": 1}


def test_tenants_on_a_lost_device_stop_at_once(serve: Serve) -> None:
    device = LostDevice()
    run = serve(A, one=BrightModel("one", device=device))
    device.left = 0
    run.send("a", 1)
    until(lambda: run.pipeline.view.is_lost)
    begin = time.monotonic()
    run.pipeline.stop(LONG_S)
    assert time.monotonic() - begin < LONG_S / 2  # nothing is in flight for which it would wait


def test_settings_that_meet_a_lost_device_end_it_all(serve: Serve) -> None:
    device = LostDevice()
    run = serve(A, one=BrightModel("one", device=device))
    device.left = 0
    with pytest.raises(ConfigurationError, match="illegal memory access"):
        run.pipeline.configure(replace(SETTINGS, batch_size=4))
    run.send("a", 1)
    assert run.counts("a").dropped == {"device_lost": 1}


def test_device_that_is_lost_during_the_drain_names_what_is_dropped(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_model, "HEAD_S", 0.05)
    run = serve(A, one=BrightModel("one"))
    run.deliver_gate.clear()
    run.send("a", 1)
    until(lambda: not run.pipeline.view.num_waiting)
    stopping = threading.Thread(target=run.pipeline.stop, args=(1.0,))
    stopping.start()
    until(lambda: not run.pipeline.view.is_open)
    run.pipeline._failed("one", illegal_access())
    stopping.join(LONG_S)
    assert run.counts("a").dropped == {"device_lost": 1}
    run.ledgers.clear()  # the frame may be delivered after all
