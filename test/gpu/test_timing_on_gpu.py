"""Times on a GPU: of kernels rather than of their launches, of a model's pieces, and what the sensors say meanwhile."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from real_gpu import GPU

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.runtime.timing import Lap, Stopwatch
from split_infer_ros.server.profiling.profiler import Effort, Profiler
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.profile_samples import ProfilePart
from split_infer_ros.telemetry.machine import gpu_driver
from split_infer_ros.telemetry.sensors import Sensors, SensorUnit

LEAST = Effort(rounds=3, warm_up=1, batches=2, seconds=0.0, runs=1, repeats=1, max_s=0.0)
KERNELS = 100
WARM_UPS = 50  # until the clock of a GPU that had nothing to do is at its height


def test_laps_are_as_long_as_the_gpu_takes() -> None:
    def work(lap: Lap) -> None:
        for cycles in (1_000_000, 4_000_000, 1_000_000):
            torch.cuda._sleep(cycles)
            lap()

    watch = Stopwatch(GPU)
    for _ in range(WARM_UPS):
        _, (short, long, again) = watch.laps(work)
    assert 2 < long / short < 8
    assert 2 < long / again < 8


def test_small_kernels_are_timed_without_their_launches() -> None:
    values = torch.zeros(16, device=GPU)

    def work() -> None:
        for _ in range(KERNELS):
            values.add_(1)

    watch = Stopwatch(GPU)
    watch.time(work)  # kernels are loaded
    found = min(watch.time(work) for _ in range(5))
    launched = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        launched.append(time.perf_counter() - begin)
    # A kernel of 16 values takes some 2 us, its launch from Python 4 and more.
    assert 0 < found < 0.9 * min(launched)


def test_a_model_is_profiled_on_the_gpu() -> None:
    model = load_model(ModelSpec("shapes", "default", str(GPU)))
    picture = Pixels(np.zeros((120, 160, 3), np.uint8), (0, 1, 2))
    images = torch.zeros((4, *model.entry.image_shape), device=GPU).contiguous(memory_format=torch.channels_last)
    whole, watch = model.backbone("output"), Stopwatch(GPU)
    with torch.inference_mode():
        seconds = [watch.time(lambda: whole(images)) for _ in range(WARM_UPS)][-1]
    samples = Profiler(model, image=picture, effort=LEAST).measure([4])
    assert [found.split_point for found in samples] == [split_point.name for split_point in model.split_points]
    assert all(found.is_complete for found in samples)
    # What lies before a split point grows with each split point; a sum of more pieces is no less, run by run.
    backbones = [found.parts[ProfilePart.BACKBONE] for found in samples]
    for each in zip(*backbones, strict=True):
        assert list(each) == sorted(each)
    # The pieces together take about what the whole takes.
    assert seconds / 3 < min(backbones[-1]) < 3 * seconds


def test_power_sensors_answer() -> None:
    monitors = [name.read_text().strip() for name in Path("/sys/class/hwmon").glob("hwmon*/name")]
    if importlib.util.find_spec("pynvml") is None and "ina3221" not in monitors:
        pytest.skip("neither nvidia-ml-py nor a power monitor is here")
    readings = Sensors.find().read()
    watts = [reading.value for reading in readings if reading.unit == SensorUnit.WATT]
    assert watts, readings
    assert all(0 < value < 2000 for value in watts)
    degrees = [reading.value for reading in readings if reading.unit == SensorUnit.CELSIUS]
    assert all(0 < value < 120 for value in degrees)


def test_the_driver_has_a_version() -> None:
    if not Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this system does not show the driver's version")
    driver = gpu_driver()
    assert driver is not None
    assert driver.partition(".")[0].isdigit()
