"""Fixtures of the nodes' tests. pytest reads this file without ROS too, so ROS is imported inside the fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec

if TYPE_CHECKING:
    from rclpy.context import Context


@pytest.fixture(scope="session", autouse=True)
def model() -> Iterator[SplitModel]:
    """Holds the model that most pipelines here share, so that it is built once."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_model(ModelSpec("shapes", "none", "auto"))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def context(ros_domain: int) -> Iterator[Context]:
    """A ROS context in the test file's own domain."""
    import rclpy

    found = rclpy.Context()
    rclpy.init(context=found, domain_id=ros_domain)
    yield found
    rclpy.try_shutdown(context=found)
