"""What the tests of the nodes share. (Read also where ROS is missing: hence what is imported late.)"""

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
    """The model that most pipelines here share; held, so that it is built once."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_model(ModelSpec("shapes", "none", "auto"))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def context(ros_domain: int) -> Iterator[Context]:
    """ROS in this file's domain."""
    import rclpy

    found = rclpy.Context()
    rclpy.init(context=found, domain_id=ros_domain)
    yield found
    rclpy.try_shutdown(context=found)
