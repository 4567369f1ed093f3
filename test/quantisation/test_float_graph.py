"""Which ONNX files become a graph that can be quantised."""

from __future__ import annotations

import pytest

for package in ("onnx", "onnxruntime"):
    pytest.importorskip(package)

from split_infer_ros.errors import ConfigurationError  # noqa: E402
from split_infer_ros.quantisation.float_graph import float_graph  # noqa: E402
from split_infer_ros.split.load import load_model  # noqa: E402
from split_infer_ros.split.model_spec import ModelSpec  # noqa: E402


def test_a_file_that_computes_its_weights_is_refused() -> None:
    """NNCF gives them up with the name of a key. The file of ``shapes`` halves them to stay small."""
    model = load_model(ModelSpec("shapes", device="cpu", on_torch=False))
    sentence = (
        r"^shapes cannot be quantised: its ONNX file computes the weights stem\.0\.weight\. "
        r"Export it with the weights that it uses; shapes is quantised where torch is installed\.$"
    )
    with pytest.raises(ConfigurationError, match=sentence):
        float_graph(model)
