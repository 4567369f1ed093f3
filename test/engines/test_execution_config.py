from __future__ import annotations

import json

import pytest

from split_infer_ros.buffers.host_arrays import FLOAT16, FLOAT32, DType, bfloat16
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import Compiler, Convolutions, ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.runtime import num_threads
from split_infer_ros.vision_ops.implementations import ImplementationChoice

SEGMENTS = ((Convolutions.CONTIGUOUS, "features.3"), (Convolutions.CHANNELS_LAST, "output"))


@pytest.mark.parametrize(
    "config",
    [
        ExecutionConfig(),
        ExecutionConfig(
            Convolutions.TRITON, folding=False, compiler=Compiler.INDUCTOR, operators=ImplementationChoice.PLAIN
        ),
        ExecutionConfig(segments=SEGMENTS),
        ExecutionConfig(engine=Engine.OPENVINO),
        ExecutionConfig(engine=Engine.ONNXRUNTIME, provider="CUDA", precision=Precision.FP16),
    ],
)
def test_a_config_is_restored_from_its_json(config: ExecutionConfig) -> None:
    assert ExecutionConfig.from_json(json.loads(json.dumps(config.as_json()))) == config


def test_json_has_plain_values() -> None:
    assert ExecutionConfig(segments=SEGMENTS).as_json() == {
        "engine": "torch",
        "convolutions": "packed",
        "folding": True,
        "compiler": "none",
        "operators": "measured",
        "precision": "fp32",
        "micro_batch": 0,
        "segments": [["contiguous", "features.3"], ["channels_last", "output"]],
    }


def test_an_engine_is_named_with_its_provider() -> None:
    assert ExecutionConfig(engine=Engine.OPENVINO).as_json()["engine"] == "openvino"
    assert ExecutionConfig(engine=Engine.ONNXRUNTIME, provider="CUDA").as_json()["engine"] == "onnxruntime:CUDA"


def test_other_values_are_ignored_and_segments_optional() -> None:
    values = ExecutionConfig(Convolutions.CONTIGUOUS).as_json() | {"tiles": 2}
    del values["segments"]
    assert ExecutionConfig.from_json(values) == ExecutionConfig(Convolutions.CONTIGUOUS)


def test_all_threads_need_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(num_threads, "max_threads", lambda: 4)
    read = [ExecutionConfig.from_json(ExecutionConfig().as_json() | {"threads": count}) for count in (0, 3, 4, 8)]
    assert [config.threads for config in read] == [0, 3, 0, 0]


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        (ExecutionConfig(precision=Precision.BF16), bfloat16()),
        (ExecutionConfig(precision=Precision.FP16), FLOAT16),
        (ExecutionConfig(precision=Precision.BF16, engine=Engine.OPENVINO), FLOAT32),
        (ExecutionConfig(precision=Precision.BF16, engine=Engine.ONNXRUNTIME, provider="TensorRT"), FLOAT32),
        (ExecutionConfig(precision=Precision.BF16, engine=Engine.ONNXRUNTIME, provider="CUDA"), bfloat16()),
    ],
)
def test_features_have_the_dtype_that_engines_exchange(config: ExecutionConfig, dtype: DType) -> None:
    assert config.boundary_dtype == dtype
