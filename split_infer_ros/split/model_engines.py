"""Finds the engines that can run a model on its device, and the precision that a user's choice leads to."""

from __future__ import annotations

from collections.abc import Sequence

from split_infer_ros.engines.engine import AUTO, Engine, can_run_on, fits_device, parse_engine
from split_infer_ros.engines.precision import OR_FP32, Precision
from split_infer_ros.engines.precision_checks import check_precision, is_made_for
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.onnx_network import OnnxNetwork
from split_infer_ros.split.quantised_file import find_quantised

ENGINES = ("torch", "onnxruntime", "openvino", "onnxruntime:CUDA", "onnxruntime:TensorRT")


def engines_for(model: SplitModel, precision: Precision = Precision.FP32) -> tuple[str, ...]:
    """Returns the installed engines that can run a model on its device in a precision; there may be none.

    They are names for ``parse_engine``. If the network's native engine is among them, it comes first.
    """
    return tuple(
        name for name in _candidates(model) if can_run_on(name, model.device) and not _objection(model, name, precision)
    )


def untuned_engine(model: SplitModel, precision: Precision) -> str:
    """Returns the engine for a model in a precision if nothing was measured: the first of ``engines_for``.

    If no engine can run the model in the precision, returns the native engine.
    """
    return (*engines_for(model, precision), model.network.native_engine.value)[0]


def choose_precision(model: SplitModel, wanted: Sequence[Precision], engine: str) -> tuple[Precision, str]:
    """Returns the precision in which a model runs.

    Args:
        model: the model, placed on its device.
        wanted: the precisions that the user accepts, the preferred one first; see ``parse_precision``.
        engine: the engine that executes the model, as a name for ``parse_engine``, or ``auto``.

    Returns:
        The first precision that is possible, and what the user should know about it, in a sentence that may be empty.
        If the user accepts several precisions, those for which the processor has no instructions are skipped.

    Raises:
        ConfigurationError: none of the precisions is possible.
    """
    reasons = []
    for precision in wanted:
        reason = _objections(model, engine, precision)
        is_slow = not reason and engine in (AUTO, Engine.TORCH.value) and not is_made_for(precision, model.device)
        if is_slow:
            reason = f"the processor has no instructions for {precision.value}, so it is slower than fp32."
        if not reason or (is_slow and len(wanted) == 1):
            reasons += [reason] if reason else []
            note = f"{model.entry.name} runs in {precision.value}: {' '.join(reasons)}" if reasons else ""
            return precision, note
        reasons.append(reason)
    preferred = wanted[0].value
    raise ConfigurationError(
        f"{model.entry.name} cannot run in {preferred} on {model.device}: {' '.join(reasons)} Take precision fp32 or "
        f"'{preferred}{OR_FP32}'."
    )


def _candidates(model: SplitModel) -> tuple[str, ...]:
    """Returns the engines that take models of this kind, the native one first."""
    native = model.network.native_engine.value
    if not model.network.has_one_graph:
        return (native,)
    return (native, *(name for name in ENGINES if name not in (native, Engine.TORCH.value)))


def _objections(model: SplitModel, engine: str, precision: Precision) -> str:
    """Says why an engine, or with ``auto`` any engine, cannot run a model in a precision; empty if it can."""
    if engine != AUTO:
        return _objection(model, engine, precision)
    if engines_for(model, precision):
        return ""
    reasons = [
        _objection(model, name, precision) or f"engine {name} is not installed."
        for name in _candidates(model)
        if fits_device(*parse_engine(name), model.device)
    ]
    return " ".join(reasons)


def _objection(model: SplitModel, engine: str, precision: Precision) -> str:
    """Says why an engine cannot compute a model in a precision, wherever it runs; empty if it can."""
    try:
        check_precision(precision, *parse_engine(engine), is_file=isinstance(model.network, OnnxNetwork))
        if precision is Precision.INT8 and model.precision is not Precision.INT8:
            find_quantised(model.network)
    except ConfigurationError as error:
        return str(error)
    return ""
