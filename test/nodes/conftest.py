"""Fixtures of the nodes' tests. pytest reads this file without ROS too, so ROS is imported inside the fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from one_thread import one_thread

from split_infer_ros.autotuning.spaces import network_space
from split_infer_ros.autotuning.tasks import network_task
from split_infer_ros.engines.engine import Engine
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_engines import engines_for
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.telemetry.machine import num_cores

if TYPE_CHECKING:
    from fork_server import Forker
    from rclpy.context import Context


BATCH_SIZES = (1, 2, 3, 4, 8)  # with which tests start nodes


@pytest.fixture(scope="session", autouse=True)
def model(cache_folder: Path) -> Iterator[SplitModel]:
    """Holds the model that most pipelines here share, so that it is built once. Its engine is known.

    Nodes need not compare the engines. They take the one that is usually the fastest.
    """
    weights = "none" if Engine.TORCH.is_installed else "default"
    with one_thread():
        model = load_model(ModelSpec("shapes", weights, "auto"))
        engines = engines_for(model)
        engine = Engine.OPENVINO.value if Engine.OPENVINO.value in engines else engines[0]
        config = {**network_space(num_cores(), engines=engines).default, "engine": engine}
        key = Key.here(str(model.device))
        Database().add(key.record(network_task(model, size), config, (1.0,), time=0.0) for size in BATCH_SIZES)
        yield model


@pytest.fixture(scope="module")
def context(ros_domain: int) -> Iterator[Context]:
    """A ROS context in the test file's own domain."""
    import rclpy

    found = rclpy.Context()
    rclpy.init(context=found, domain_id=ros_domain)
    yield found
    rclpy.try_shutdown(context=found)


@pytest.fixture(scope="module")
def forker(model: SplitModel) -> Iterator[Forker]:
    """A process that forks nodes for all tests of a file."""
    from fork_server import Forker

    with Forker() as found:
        yield found
