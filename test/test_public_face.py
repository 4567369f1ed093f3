"""The names that users import from the package itself, and the example in its docstring."""

from __future__ import annotations

import doctest
import subprocess
import sys

import pytest

import split_infer_ros

CHILD_S = 200  # a bound on the process that a test starts; the test's own bound lies above it
PUBLIC = {
    "ConfigurationError",
    "Detections",
    "FrameError",
    "HandleError",
    "ImageError",
    "ImageResult",
    "Limits",
    "LocalPipeline",
    "ModelEntry",
    "ModelSpec",
    "Notice",
    "PassingError",
    "PointCloudError",
    "Preprocess",
    "SourceError",
    "SplitInferError",
    "StageSettings",
    "StreamError",
    "UnknownModelError",
    "UnknownSplitPointError",
    "WeightsError",
    "load_model",
    "onnx_entry",
}


def test_public_names_are_locked() -> None:
    assert set(split_infer_ros.__all__) == PUBLIC
    assert len(split_infer_ros.__all__) == len(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_name_is_found_where_it_is_defined(name: str) -> None:
    found = getattr(split_infer_ros, name)
    assert found.__name__ == name
    assert found.__module__.startswith("split_infer_ros.")
    assert name in dir(split_infer_ros)


def test_every_error_is_public() -> None:
    from split_infer_ros import errors

    defined = {name for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, Exception)}
    assert defined <= PUBLIC


def test_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'split_infer_ros' has no attribute 'load'"):
        _ = split_infer_ros.load


@pytest.mark.timeout(2 * CHILD_S)
def test_importing_the_package_does_not_import_torch() -> None:
    program = "import sys, split_infer_ros; print({'torch', 'numpy', 'rclpy'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=CHILD_S, check=True)
    assert found.stdout == "set()\n"


def test_example_in_the_docstring_runs() -> None:
    failures, attempted = doctest.testmod(split_infer_ros)
    assert attempted > 4
    assert failures == 0
