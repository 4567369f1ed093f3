"""Makes plans: chooses and allocates memory, and prepares the backbone."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.engines.compute import backbone_for
from split_infer_ros.engines.cuda.model_memory import ModelMemory
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.errors import ConfigurationError, StreamError
from split_infer_ros.memory_cost.memory_choice import MemoryAdvisor
from split_infer_ros.operator_placement.placed_backbone import make_backbone
from split_infer_ros.preprocessing.host_preprocessor import PixelPreprocessor
from split_infer_ros.preprocessing.preprocessor import make_preprocessor
from split_infer_ros.runtime.captures import CaptureError
from split_infer_ros.runtime.shortage import summarize_error
from split_infer_ros.runtime.streams import Stream, work_apart
from split_infer_ros.server.execution.recording import can_be_recorded, graph_input_bytes_of, record_backbone
from split_infer_ros.server.memory.budget import PlanBudget
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.transport import Connection, OwnedPool
from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming.ring_memory import RingMemory
from split_infer_ros.weight_streaming.streaming import stream_backbone


def make_plan(
    *,
    model: SplitModel,
    settings: StageSettings,
    connection: Connection[Any],
    advisor: MemoryAdvisor,
    taken_bytes: float = 0.0,
    pool: OwnedPool | None = None,
    ring_memory: RingMemory | None = None,
) -> Plan:
    """Splits the model, chooses and allocates memory, and on a GPU records the backbone.

    Args:
        model: the model to split.
        settings: the settings of the plan.
        connection: the connection to the head. It makes the slot pool.
        advisor: chooses the memory policy.
        taken_bytes: the part of the memory budget that other models use.
        pool: slots of another plan with these settings. They are used as well if they fit the features. Otherwise,
            and with None, the connection makes new ones.
        ring_memory: the ring for streamed weights that the model shares with others; None: it shares none.

    Raises:
        ConfigurationError: the model has no such split point, the machine has no such memory policy, or memory is
            short. It is also raised if the GPU cannot run the batch, or if weights cannot be read. Nothing was kept.
    """
    split_point = model.split_point(settings.split_point)
    layout = Layout(split_point.tensors, settings.batch_size)
    with ExitStack() as undo, work_apart(model.device, "plan"):  # other models may be serving frames
        try:
            memory = advisor.choose(
                settings.memory_policy,
                layout,
                connection.shared,
                kernels=lambda: model.kernels_before(settings.split_point),
            )
            place = Place(memory.policy, model.device, memory.switchable)
            budget = PlanBudget(
                settings=settings,
                split_point=split_point,
                place=place,
                input_bytes=model.entry.preprocess.staging(1).nbytes,
                graph_input_bytes=graph_input_bytes_of(model, settings),
                taken_bytes=taken_bytes,
            )
            budget.check()
            if pool is None or pool.layout.specs != layout.specs:
                pool = connection.make_pool(layout, settings.pool_slots, place)
                undo.callback(pool.close)
            place = replace(place, policy=pool.slots.policy)  # the policy differs if there was no room for the first
            model_memory = ModelMemory.open(place, memory.covers_model)
            preprocessor = make_preprocessor(
                model.entry.preprocess,
                model.batch_form,
                batch_size=settings.batch_size,
                place=place,
                budget_bytes=replace(budget, place=place).image_buffers_bytes,
                pool=model_memory.images,
            )
            streamed = stream_backbone(
                model,
                split_point,
                settings,
                batch_size=settings.batch_size,
                ring_memory=ring_memory,
                num_threads=model.execution_config.threads,
            )
            if streamed is not None:
                undo.callback(streamed.close)
            model.use_memory(model_memory.policy)
            backbone = streamed or backbone_for(pool.slots, make_backbone(model, settings.split_point))
            plan = Plan(
                model=model,
                settings=settings,
                split_point=split_point,
                backbone=backbone,
                pool=pool,
                preprocessor=preprocessor,
                memory_reason=pool.slots.note or memory.reason,
                memory=model_memory,
                weight_bytes=model.weight_bytes(settings.split_point),
                warm_up_sizes=tuple(model.warm_up_sizes(settings.batch_size)),
            )
            prepared = _prepare_on_gpu if model.device.type == "cuda" else _with_pixels
            plan = prepared(plan)
        except StreamError as error:  # raised on a GPU, where the plan already ran once
            raise ConfigurationError(f"Weights cannot be streamed: {error}") from error
        except RuntimeError as error:
            raise ConfigurationError(
                f"A batch of {settings.batch_size} images of {model.entry.name} does not fit into {model.device}'s "
                f"memory, or cannot run or be recorded there ({summarize_error(error)}): "
                "take a smaller batch_size, or cuda_graphs false."
            ) from error
        undo.pop_all()
        return plan


def _with_pixels(plan: Plan) -> Plan:
    """Returns the plan, with a backbone that normalises images itself if its engine does that faster."""
    preprocess, backbone = plan.model.entry.preprocess, plan.backbone
    part = backbone.for_pixels(preprocess.pixel_input) if isinstance(backbone, EnginePart) else None
    if part is None:
        return plan
    preprocessor = PixelPreprocessor(preprocess, plan.settings.batch_size)
    return replace(plan, backbone=part, preprocessor=preprocessor)


def _prepare_on_gpu(plan: Plan) -> Plan:
    """Returns the plan with a recorded backbone. If recording is not possible, runs the backbone once.

    Only a run shows whether memory is short.
    """
    model = plan.model
    model.kernels_before(plan.split_point.name)  # kept for ``ModelInstance.use``, which may hold the server's lock
    if plan.settings.cuda_graphs and can_be_recorded(plan.backbone):
        try:
            graphs = record_backbone(
                plan.backbone, plan.pool.slots, model, plan.settings, memory=plan.memory.activations
            )
            return replace(plan, graphs=graphs)
        except CaptureError as error:
            plan = replace(plan, graph_note=f"{model.entry.name} runs without CUDA graphs, more slowly: {error}")
    plan.warm_up(plan.warm_up_sizes, Stream(model.device), Stream(model.device))
    return plan
