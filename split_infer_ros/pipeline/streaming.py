"""A backbone on streamed weights: from settings to a half that reads them, and the model's own given back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx

from split_infer_ros.errors import ConfigurationError, StreamError, WeightsError
from split_infer_ros.layering.contents import Contents, open_contents
from split_infer_ros.layering.cores import on_cores
from split_infer_ros.layering.device_stages import Processor
from split_infer_ros.layering.heap import trim
from split_infer_ros.layering.home import CopiedHome, Home, MappedHome
from split_infer_ros.layering.optimiser import choose, trade_off
from split_infer_ros.layering.pack import digest, pack_model
from split_infer_ros.layering.packed_file import PAGE, read_header
from split_infer_ros.layering.predictor import Machine
from split_infer_ros.layering.residency import ASYNCHRONOUS, AUTO, RESIDENT, TWO_STAGE, Placement, place
from split_infer_ros.layering.ring import RingPlan
from split_infer_ros.layering.streamed import StreamedHalf
from split_infer_ros.layering.timing import time_model
from split_infer_ros.layering.unpack import unpack
from split_infer_ros.pipeline.cores import ALL
from split_infer_ros.pipeline.device import DeviceQueue, mark_here
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.split.cuts import Cut
from split_infer_ros.split.graph import state_of
from split_infer_ros.split.halves import backbone_of
from split_infer_ros.split.model import SplitModel
from split_infer_ros.tuning.database import default_path

PASSES = 4  # by which layers are timed


def stream_backbone(
    model: SplitModel, cut: Cut, settings: StageSettings, home: Home | None = None, cores: int = 0
) -> StreamedHalf | None:
    """The half before the cut on streamed weights; None if they are to be resident, or it has none.

    The weights are packed first, unless that was done; then the model's own are given back.

    Args:
        model: whose half it is.
        cut: behind it.
        settings: where weights are, and what they may take.
        home: a ring that halves of several models take turns at, on the CPU; the settings' budget is its size.
        cores: with which it runs on a CPU, for which its weights are laid out; 0: all.

    Raises:
        ConfigurationError: no such file, budget or device; nothing has changed.
    """
    if settings.weights_residency == RESIDENT:
        return None
    if model.dtype != torch.float32:
        raise ConfigurationError(
            f"weights_residency {settings.weights_residency} is for a backbone in fp32, and this one runs in "
            f"{str(model.dtype).removeprefix('torch.')}: take precision fp32, or resident."
        )
    threads = (cores or ALL) if model.device.type == "cpu" else None
    try:
        path = _packed(model, settings, threads)
        contents = _contents(model, cut, path, threads)
        if not contents.uses:
            return None
        if home is not None:
            plan = place(settings.weights_residency, contents.sizes, contents.uses, home.nbytes).plan
            streamed = StreamedHalf(contents, plan, home=home)
        elif threads is not None:
            streamed = _on_cpu(model, cut, settings, contents, threads)
        else:
            streamed = _on_gpu(model, cut, settings, contents)
    except (OSError, StreamError) as error:
        raise ConfigurationError(f"Weights cannot be streamed: {error}") from error
    names = state_of(backbone_of(model.graph, cut)).keys()
    model.release(names, partial(_fetch, model, path, threads))
    trim()
    return streamed


def _contents(model: SplitModel, cut: Cut, path: Path, threads: int | None) -> Contents:
    return open_contents(model, backbone_of(model.graph, cut), path, threads)


def _on_cpu(model: SplitModel, cut: Cut, settings: StageSettings, contents: Contents, threads: int) -> StreamedHalf:
    budget = settings.weights_budget_bytes
    if settings.weights_residency == AUTO:
        placement = _best(model, cut, settings, contents.path, threads)
    else:
        placement = place(settings.weights_residency, contents.sizes, contents.uses, budget, contents.kept_bytes)
    return StreamedHalf(contents, placement.plan, placement.resident)


def _on_gpu(model: SplitModel, cut: Cut, settings: StageSettings, contents: Contents) -> StreamedHalf:
    """Two-stage where the disk can write to what the GPU reads, else three-stage, and it is said."""
    device, budget = model.device, settings.weights_budget_bytes
    if settings.weights_residency == AUTO:
        raise ConfigurationError("weights_residency auto times layers on the CPU: on a GPU take another one.")
    processor = Processor(DeviceQueue(device).copy, partial(mark_here, device))
    note = ""
    if settings.weights_residency == TWO_STAGE:
        plan = place(TWO_STAGE, contents.sizes, contents.uses, budget, contents.kept_bytes).plan
        try:
            return _try(contents, plan, MappedHome(plan.capacity, device, processor), model)
        except (ConfigurationError, StreamError) as error:
            note = f"two_stage cannot be had here ({error}): asynchronous is used."
            contents = _contents(model, cut, contents.path, None)
    residency = ASYNCHRONOUS if note else settings.weights_residency
    whole = max((*contents.sizes, PAGE))
    plan = place(residency, contents.sizes, contents.uses, budget, contents.kept_bytes, whole, sides=2).plan
    streamed = StreamedHalf(contents, plan, home=CopiedHome(plan.capacity, device, processor))
    streamed.note = streamed.note or note
    return streamed


def _try(contents: Contents, plan: RingPlan, home: Home, model: SplitModel) -> StreamedHalf:
    """A half that has made a pass."""
    streamed = StreamedHalf(contents, plan, home=home)
    images = torch.zeros((1, *model.entry.image_shape), device=model.device)
    try:
        with torch.inference_mode():
            streamed(images.contiguous(memory_format=torch.channels_last))
    except StreamError:
        streamed.close()
        raise
    return streamed


def _best(model: SplitModel, cut: Cut, settings: StageSettings, path: Path, threads: int) -> Placement:
    """The least memory with which a pass is as quick as with resident weights, by layers timed here."""
    contents = _contents(model, cut, path, threads)
    sizes, uses, budget = contents.sizes, contents.uses, settings.weights_budget_bytes
    place(TWO_STAGE, sizes, uses, budget, contents.kept_bytes)  # or says what is needed
    images = torch.zeros((settings.batch_size, *model.entry.image_shape)).contiguous(memory_format=torch.channels_last)

    def make(plan: RingPlan) -> StreamedHalf:
        return StreamedHalf(_contents(model, cut, path, threads), plan)

    @torch.inference_mode()
    def run() -> Machine:
        return time_model(make, sizes, uses, images, PASSES)

    machine = on_cores(threads, run)  # as the backbone's thread will
    points = trade_off(sizes, uses, machine, budget - contents.kept_bytes, settings.weights_delay_s)
    return choose(points, machine.compute, settings.weights_delay_s).placement


def _packed(model: SplitModel, settings: StageSettings, threads: int | None) -> Path:
    """The file of these weights: the user's, or one in the cache folder, made where there is none."""
    if model.graph not in _values:  # later they may have been given back
        _values[model.graph] = digest(model.state())
    values = _values[model.graph]
    if settings.weights_file:
        path = Path(settings.weights_file).expanduser()
        header = read_header(path)
        if header.fingerprint == model.fingerprint and header.values != values:  # another model's is refused later
            raise WeightsError(f"weights_file {path} holds other weights than were loaded: pack those.")
        return path
    # as layouts go: another number of cores or images wants others, and would have some converted at every call
    kind = f"{threads}-{settings.batch_size}" if threads else "gpu"
    path = default_path().parent / "weights" / f"{model.fingerprint}-{values}-{kind}.weights"
    try:
        sound = open_contents(model, model.graph, path, threads).header.values == values
    except WeightsError:  # none yet, or of another torch
        sound = False
    if not sound:
        pack_model(model, path, threads, settings.batch_size)
    return path


def _fetch(model: SplitModel, path: Path, threads: int | None, wanted: Collection[str]) -> Mapping[str, Tensor]:
    """Weights that were given back, out of their file."""
    try:
        return unpack(model, path, threads, wanted)
    except (OSError, StreamError, WeightsError) as error:
        raise WeightsError(
            f"{error} So the weights of {model.entry.name} that were given back cannot be had again: remove that file, "
            "or pack it again, and start the node anew."
        ) from error


_values: WeakKeyDictionary[fx.GraphModule, str] = WeakKeyDictionary()  # digests, by what placed models share
