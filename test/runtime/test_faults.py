"""The errors after which a process cannot use its GPU, and the drop reasons of errors."""

from __future__ import annotations

import importlib

import pytest
from lost_device import AcceleratorError, illegal_access

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ConfigurationError, PointCloudError, StreamError
from split_infer_ros.runtime.faults import STICKY, drop_reason, is_sticky

OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 139.72 GiB of which 512.00 MiB is "
    "free. Including non-PyTorch memory, this process has 139.20 GiB memory in use."
)


def caused_by(error: Exception) -> Exception:
    try:
        try:
            raise error
        except Exception as cause:
            raise ConfigurationError("A batch of 8 images cannot run.") from cause
    except ConfigurationError as found:
        return found


@pytest.mark.parametrize("code", STICKY)
def test_numbers_of_sticky_errors_decide(code: int) -> None:
    assert is_sticky(AcceleratorError(code, "in other words"))


@pytest.mark.parametrize(
    "text",
    [
        *(f"CUDA error: {words}\nCompile with `TORCH_USE_CUDA_DSA`" for words in STICKY.values()),
        "Triton Error [CUDA]: an illegal memory access was encountered",
        "cudaMallocManaged failed: unspecified launch failure.",
    ],
)
def test_texts_of_sticky_errors_decide_without_number(text: str) -> None:
    assert is_sticky(RuntimeError(text))


@pytest.mark.parametrize(
    "error",
    [
        None,
        AcceleratorError(2, "out of memory"),
        AcceleratorError(900, "operation not permitted when stream is capturing"),
        RuntimeError(OUT_OF_MEMORY),
        RuntimeError("CUDA error: invalid device ordinal"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (misaligned address)"),
        StreamError(DropReason.WEIGHTS_STALLED, "The disk gave nothing."),
    ],
)
def test_other_errors_lose_only_their_batch(error: Exception | None) -> None:
    assert not is_sticky(error)


def test_an_error_is_sticky_if_its_cause_is() -> None:
    assert is_sticky(caused_by(illegal_access()))
    assert not is_sticky(caused_by(RuntimeError(OUT_OF_MEMORY)))


def test_each_error_has_its_drop_reason() -> None:
    assert drop_reason(illegal_access()) == "device_lost"
    assert drop_reason(StreamError(DropReason.WEIGHTS_STALLED, "")) == "weights_stalled"
    assert drop_reason(PointCloudError(DropReason.TOO_LARGE, "")) == "too_large"
    assert drop_reason(RuntimeError(OUT_OF_MEMORY)) == "backbone_error"


def test_cuda_has_these_messages_for_these_errors() -> None:
    runtime = pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")
    known = {}
    for code in STICKY:
        try:
            known[code] = runtime.cudaGetErrorString(runtime.cudaError_t(code))[1].decode()
        except ValueError:  # of a newer CUDA than this binding's
            continue
    assert known == {code: STICKY[code] for code in known}
    ends_process = {
        error.value for error in runtime.cudaError_t if "terminated and relaunched" in (error.__doc__ or "")
    }
    assert ends_process <= STICKY.keys()


def test_torchs_own_error_tells_its_number_as_expected() -> None:
    torch = importlib.import_module("torch")
    if not hasattr(torch, "AcceleratorError"):
        pytest.skip("torch before 2.8 raises plain RuntimeErrors")
    error = torch.AcceleratorError("in other words")
    error.error_code = 719
    assert is_sticky(error)
